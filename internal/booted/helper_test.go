//go:build booted

package booted

import (
	"encoding/json"
	"fmt"
	"net"
	"os"
	"strconv"
	"time"
)

// helperMain is the life of this binary as a command on a host: booted WHAT ARG...
func helperMain() {
	if len(os.Args) < 2 || len(os.Args[1]) == 0 || os.Args[1][0] == '-' {
		return
	}
	var err error
	switch os.Args[1] {
	case "argv": // writes its arguments and environment into a file
		err = writeJSON(os.Args[2], map[string]any{"argv": os.Args[3:], "env": os.Environ()})
		time.Sleep(time.Hour)
	case "accept": // answers on the socket that was passed
		err = accept()
	case "ready": // says that it is up, for itself
		err = sayReady()
		time.Sleep(time.Hour)
	default:
		err = fmt.Errorf("unknown: %q", os.Args[1:])
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

func writeJSON(file string, what any) error {
	b, err := json.Marshal(what)
	if err != nil {
		return err
	}
	if err := os.WriteFile(file+"~", b, 0o644); err != nil {
		return err
	}
	return os.Rename(file+"~", file)
}

// accept does as sd_listen_fds(3) says.
func accept() error {
	if os.Getenv("LISTEN_PID") != strconv.Itoa(os.Getpid()) || os.Getenv("LISTEN_FDS") != "1" {
		return fmt.Errorf("LISTEN_PID=%s LISTEN_FDS=%s, and this is %d", os.Getenv("LISTEN_PID"), os.Getenv("LISTEN_FDS"), os.Getpid())
	}
	l, err := net.FileListener(os.NewFile(3, "socket"))
	if err != nil {
		return err
	}
	for {
		c, err := l.Accept()
		if err != nil {
			return err
		}
		fmt.Fprintf(c, "token %s\n", os.Getenv("FENCE_TOKEN"))
		c.Close()
	}
}

func sayReady() error {
	c, err := net.Dial("unixgram", os.Getenv("NOTIFY_SOCKET"))
	if err != nil {
		return err
	}
	defer c.Close()
	_, err = fmt.Fprintf(c, "READY=1\nSTATUS=the command itself, watchdog %s for %q", os.Getenv("WATCHDOG_USEC"), os.Getenv("WATCHDOG_PID"))
	return err
}
