// Billing is the command in the image of TestContainer. Static, and alone in the image, it
// writes into /lives/lives when it lived (for consultest.ReadIntervals) and prints what it is.
// It leaves a process behind, and ends with 7 some time after a SIGTERM.
//
//	billing left     only lives, until it is killed
//	billing orphan   leaves a process that ends soon, and ends itself
//	billing die      ends by a SIGKILL, as with BILLING=die
package main

import (
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

func main() {
	what := os.Getenv("BILLING")
	if len(os.Args) > 1 {
		what = os.Args[1]
	}
	switch what {
	case "":
		bill()
	case "left":
		time.Sleep(10 * time.Minute) // the test is over long before
	case "soon":
		time.Sleep(50 * time.Millisecond)
	case "orphan":
		leave("soon")
	case "die":
		must(unix.Kill(os.Getpid(), unix.SIGKILL))
		select {}
	}
}

// leave starts a process in a session of its own, and doesn't wait for it.
func leave(what string) {
	c := exec.Command("/proc/self/exe", what)
	c.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	must(c.Start())
}

func bill() {
	term := make(chan os.Signal, 1)
	signal.Notify(term, syscall.SIGTERM)
	leave("left")
	fmt.Printf("billing: pid 1 is %s, parent %s, user %d:%d, root writable: %v\n",
		comm(1), comm(os.Getppid()), os.Getuid(), os.Getgid(), os.WriteFile("/file", nil, 0o600) == nil)
	status, err := os.ReadFile("/proc/self/status")
	must(err)
	for line := range strings.Lines(string(status)) {
		if strings.HasPrefix(line, "CapBnd:") || strings.HasPrefix(line, "NoNewPrivs:") {
			fmt.Print("billing: ", line)
		}
	}
	lives, err := os.OpenFile("/lives/lives", os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	must(err)
	alive, err := os.OpenFile("/lives/alive", os.O_CREATE|os.O_RDONLY, 0o600)
	must(err)
	write := func(what string) {
		var now unix.Timespec
		must(unix.ClockGettime(unix.CLOCK_BOOTTIME, &now))
		_, err := fmt.Fprintf(lives, "%s %s %d %d %s\n", what, os.Getenv("FENCE_TOKEN"), now.Nano(), os.Getpid(), os.Getenv("HOST"))
		must(err)
	}
	if unix.Flock(int(alive.Fd()), unix.LOCK_EX|unix.LOCK_NB) != nil {
		write("overlap")
	}
	write("start")
	<-term
	time.Sleep(100 * time.Millisecond) // longer than it takes to start the next one too early
	write("end")
	os.Exit(7)
}

func comm(pid int) string {
	name, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid))
	must(err)
	return strings.TrimSpace(string(name))
}

func must(err error) {
	if err != nil {
		fmt.Println("billing:", err)
		os.Exit(1)
	}
}
