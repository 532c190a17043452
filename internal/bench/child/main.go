//go:build linux

// Child is what the benchmark lets others start: small, quick to start, and exact.
//
//	child beat FILE   write the boot clock into FILE: word 0 at the start, word 1 every
//	                  millisecond, word 2 at the end, which comes when word 3 isn't 0
//	child deaf FILE   the same, deaf to TERM, HUP and INT
//	child burn        keep one core busy
//	child plain CMD.. execute CMD as a user who may not have real-time priority
//	child launch CMD..  run CMD and write to descriptor 3 its pid, and in the end:
//	                  start end user system maxrss status (ns, ns, ns, ns, kB, wait status)
//
// A program that starts CMD directly passes its own size on: Linux counts the memory
// that a process had before its execve into its ru_maxrss. That is what launch is for.
//
// Nothing here outlives two minutes but what launch was given, and a beating child not
// its file.
package main

import (
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"strconv"
	"syscall"
	"unsafe"
)

const (
	clockBoottime = 7
	second        = 1e9
	life          = 120 * second
)

func now() int64 {
	var ts syscall.Timespec
	_, _, errno := syscall.RawSyscall(syscall.SYS_CLOCK_GETTIME, clockBoottime, uintptr(unsafe.Pointer(&ts)), 0)
	if errno != 0 {
		os.Exit(71)
	}
	return ts.Nano()
}

func main() {
	start := now()
	if len(os.Args) < 2 {
		os.Exit(64)
	}
	switch args := os.Args[2:]; os.Args[1] {
	case "beat":
		beat(args[0], start)
	case "deaf":
		signal.Ignore(syscall.SIGTERM, syscall.SIGHUP, syscall.SIGINT)
		beat(args[0], start)
	case "burn":
		for now()-start < life {
			for range 1000000 {
			}
		}
	case "plain":
		plain(args)
	case "launch":
		launch(args)
	default:
		os.Exit(64)
	}
}

func beat(file string, start int64) {
	fd, err := syscall.Open(file, syscall.O_RDWR|syscall.O_CREAT|syscall.O_CLOEXEC, 0o600)
	if err == nil {
		err = syscall.Ftruncate(fd, 4096)
	}
	check(err)
	page, err := syscall.Mmap(fd, 0, 4096, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_SHARED)
	check(err)
	word := (*[4]int64)(unsafe.Pointer(&page[0]))
	runtime.LockOSThread()
	word[0] = start
	for word[3] == 0 && now()-start < life && linked(fd) {
		word[1] = now()
		pause := syscall.Timespec{Nsec: 1e6}
		_ = syscall.Nanosleep(&pause, nil)
	}
	word[2] = now()
}

// linked says whether the file has a name.
func linked(fd int) bool {
	var st syscall.Stat_t
	return syscall.Fstat(fd, &st) == nil && st.Nlink > 0
}

// plain gives up what SCHED_FIFO needs.
func plain(argv []string) {
	const capSysNice, rlimitRtprio = 23, 14
	runtime.LockOSThread()
	// Without the right to do so there is nothing to give up.
	_, _, _ = syscall.RawSyscall(syscall.SYS_PRCTL, syscall.PR_CAPBSET_DROP, capSysNice, 0)
	_ = syscall.Setrlimit(rlimitRtprio, &syscall.Rlimit{})
	check(syscall.Exec(argv[0], argv, os.Environ()))
}

func launch(argv []string) {
	path, err := exec.LookPath(argv[0])
	check(err)
	syscall.CloseOnExec(3)
	begin := now()
	pid, err := syscall.ForkExec(path, argv, &syscall.ProcAttr{Env: os.Environ(), Files: []uintptr{0, 1, 2}})
	check(err)
	say(int64(pid))
	var status syscall.WaitStatus
	var used syscall.Rusage
	for {
		_, err := syscall.Wait4(pid, &status, 0, &used)
		if err == nil {
			break
		}
		if err != syscall.EINTR {
			check(err)
		}
	}
	end := now()
	say(begin, end, used.Utime.Nano(), used.Stime.Nano(), int64(used.Maxrss), int64(status))
}

func say(numbers ...int64) {
	var b []byte
	for _, n := range numbers {
		b = append(strconv.AppendInt(b, n, 10), ' ')
	}
	b[len(b)-1] = '\n'
	_, err := syscall.Write(3, b)
	check(err)
}

func check(err error) {
	if err != nil {
		_, _ = os.Stderr.WriteString("child: " + err.Error() + "\n")
		os.Exit(71)
	}
}
