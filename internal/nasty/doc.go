// Package nasty builds the test load that hunts what kills process trees, finds what is
// left of it, and cleans up after it. It is for tests, on Linux.
//
//	func TestMain(m *testing.M) { code := m.Run(); nasty.Remove(); os.Exit(code) }
//
//	load := nasty.New(t) // builds; kills what is left when t ends
//	cmd := load.Command("daemon,vfork,bomb", "-main", "polite")
//	...                  // start it, or give load.Args(...) to what is tested
//	pids, err := load.WaitReady(5 * time.Second)
//	...                  // what is tested kills
//	err = load.WaitGone(time.Second)
//
// # Kinds
//
// Each takes a count: hopper4, many500, bomb64. Deaf means: ignores TERM, HUP and INT.
//
//	plain      child
//	deaf       deaf child
//	many       300 plain children
//	group      child in a process group of its own
//	session    child in a session of its own
//	daemon     double fork, own session, deaf
//	stopped    daemon that has stopped itself
//	subreaper  deaf child that is a subreaper, and its daemon
//	pidns      deaf child, the init of a PID namespace of its own (root only)
//	nobody     daemon that became user 65534 (root only)
//	vfork      child in D, which waits in vfork for its own child
//	busy       child that ignores all signals and spins
//	hopper     forks, the parent exits, without end; deaf
//	bomb       128 processes that replace whatever is missing, and themselves; deaf
//	threads    child with 16 threads of its own
//	headless   child whose main thread has ended: looks like a zombie, and isn't one
//	setuid     child that became root by a set-user-ID program (see Load.Setuid)
//
// # Options
//
//	-main plain      the main process dies of a TERM
//	-main deaf       it ignores TERM, HUP and INT (the default)
//	-main polite     it exits at once on TERM
//	-main dawdle=DUR it exits DUR after the first TERM
//	-main sleep=DUR  it exits DUR after all were up, and ignores nothing
//	-code N          its exit code; 0 by default
//	-life DUR        when everything ends by itself: 2m by default, 10m at most.
//	                 busy, hopper and bomb end after one minute at the latest
//	-log FILE        append when it ran, current to 2 ms: see ReadLog
//
// It writes nothing else, and exits with 1 if it can't do what it was told.
//
// # Limits
//
// Process IDs in the ready file are those of the PID namespace that the main process
// lives in. For hopper and bomb it names the process group, whose members come and go.
// Where nobody reaps orphans at once (a container without a real init), hopper and bomb
// leave thousands of zombies a second: run them below a subreaper that reaps.
package nasty
