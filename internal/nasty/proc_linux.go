package nasty

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Proc is a living process as /proc shows it.
type Proc struct {
	Pid, PPid, Pgid, Sid int
	Threads              int
	Comm                 string // nasty-KIND
	State                string // R, S, D, T; Z if only the main thread has ended
	Cmdline              string
}

func (p Proc) String() string {
	return fmt.Sprintf("%s[%d %s]", p.Comm, p.Pid, p.State)
}

// Survivors are the living processes with this tag, the newest first. Zombies aren't
// alive. It looks at environments and, for those it may not read, at arguments. What
// forks faster than /proc can be read may be missing: Load.Alive misses nothing.
func Survivors(tag string) []Proc {
	for range 3 {
		if procs := scan(tag); len(procs) > 0 {
			return procs
		}
	}
	return nil
}

func scan(tag string) []Proc {
	dir, err := os.Open("/proc")
	if err != nil {
		panic(err)
	}
	defer dir.Close()
	names, err := dir.Readdirnames(-1)
	if err != nil {
		panic(err)
	}
	var procs []Proc
	// Backwards: those that never stop forking have the newest IDs, and are gone soon.
	for i := len(names) - 1; i >= 0; i-- {
		pid, err := strconv.Atoi(names[i])
		if err != nil {
			continue
		}
		if p, ok := find(pid, tag); ok {
			procs = append(procs, p)
		}
	}
	return procs
}

// find looks at one process. A zombie has neither environment nor arguments, but if only
// the main thread has ended, the other threads show them.
func find(pid int, tag string) (Proc, bool) {
	dir := filepath.Join("/proc", strconv.Itoa(pid))
	cmdline, ours := tagged(dir, tag)
	if !ours && len(cmdline) > 0 {
		return Proc{}, false
	}
	p, err := readStat(dir)
	if err != nil {
		return Proc{}, false
	}
	if !ours && p.State == "Z" && p.Threads > 1 {
		tasks, _ := filepath.Glob(dir + "/task/*")
		for i := 0; i < len(tasks) && !ours; i++ {
			cmdline, ours = tagged(tasks[i], tag)
		}
	}
	p.Cmdline = string(bytes.ReplaceAll(bytes.TrimRight(cmdline, "\x00"), []byte{0}, []byte{' '}))
	return p, ours && (p.State != "Z" || p.Threads > 1) && p.State != "X"
}

// tagged matches only "PROGRAM -tag TAG": the tag also stands in the command line of
// what started the load, further on.
func tagged(dir, tag string) (cmdline []byte, ours bool) {
	cmdline, _ = os.ReadFile(dir + "/cmdline")
	_, args, _ := bytes.Cut(cmdline, []byte{0})
	if bytes.HasPrefix(args, []byte("-tag\x00"+tag+"\x00")) {
		return cmdline, true
	}
	environ, _ := os.ReadFile(dir + "/environ")
	return cmdline, bytes.Contains(environ, []byte("NASTY_TAG="+tag+"\x00"))
}

func readStat(dir string) (p Proc, err error) {
	stat, err := os.ReadFile(dir + "/stat")
	if err != nil {
		return p, err
	}
	// pid (comm) state ppid pgrp session ..., num_threads being the 20th: proc_pid_stat(5).
	open, end := bytes.IndexByte(stat, '('), bytes.LastIndexByte(stat, ')')
	if open < 0 || end < 0 {
		return p, fmt.Errorf("cannot read %s/stat: %q", dir, stat)
	}
	p.Comm = string(stat[open+1 : end])
	rest := strings.Fields(string(stat[end+1:]))
	p.State = rest[0]
	p.Pid, err = strconv.Atoi(strings.TrimSpace(string(stat[:open])))
	for i, field := range map[int]*int{1: &p.PPid, 2: &p.Pgid, 3: &p.Sid, 17: &p.Threads} {
		*field, _ = strconv.Atoi(rest[i])
	}
	return p, err
}

// killPass kills what it finds, and says how many it found.
func killPass(tag string) int {
	procs := Survivors(tag)
	for _, p := range procs {
		kill(p, tag)
	}
	return len(procs)
}

// kill kills a process if its ID still means one with the tag.
func kill(p Proc, tag string) {
	fd, err := unix.PidfdOpen(p.Pid, 0)
	if err != nil {
		return
	}
	defer unix.Close(fd)
	if _, ok := find(p.Pid, tag); !ok {
		return
	}
	// Forkers are too fast to be caught one by one. They have a session to themselves,
	// and a signal to a group misses nobody who is just being forked.
	if p.Comm == "nasty-hopper" || p.Comm == "nasty-bomb" {
		if p.Pgid == p.Sid && p.Pgid > 1 && p.Pgid != unix.Getpgrp() {
			_ = unix.Kill(-p.Pgid, unix.SIGKILL)
		}
	}
	_ = unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0)
}
