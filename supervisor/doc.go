// Package supervisor runs a command for as long as a lock is provably held, and sees to it
// that nothing of the command is alive when somebody else could hold the lock.
//
// # Promise
//
//   - The command is started only on a successful acquire that is younger than Dials.Poll,
//     or on a check that is.
//   - Each proof of ownership counts from before its request was sent. D (see
//     [Dials.RenewDeadline]) after the last one everything that the command started gets
//     SIGTERM, Dials.KillAfter later SIGKILL, and [Dials.Margin] after that it is gone: before
//     Dials.Lease has passed, which is how long the lock-delay holds others off.
//   - Two processes enforce that, each by itself: the keeper (this process) and the guard (a
//     child of it, and the parent of the command). Either may be killed or stopped.
//   - The lock is released when the tree is gone, and not before: [Run] has no way to say it
//     in another order. What outlives the command is killed first.
//   - Deadlines are on CLOCK_BOOTTIME, which counts suspend. No Go timer and no wall clock
//     decides a kill.
//
// # Limits
//
//   - Keeper and guard killed in the same instant: the command itself dies with the guard
//     (PDEATHSIG), but not what it started, unless GuardOptions.PIDNamespace is set. Both
//     stopped: nothing acts until one of them is continued, and then it acts first.
//   - A machine that is frozen whole (a paused VM) can't act. A process in uninterruptible I/O
//     can't be killed, nor one of another user by an unprivileged keeper: then the outcome is
//     [LostAlive], or the lock stays held.
//   - Work that was handed to another daemon (docker run, systemctl start, at) doesn't descend
//     from the command.
//   - All of this holds on Linux. FreeBSD has the same by its own means (procctl(2)), but
//     nothing has been tested there. On macOS it doesn't hold: what leaves the command's
//     process group isn't stopped. Elsewhere than on Linux a timer may be 200 ms late.
//     See [PlatformLimit].
//
// # Use
//
// A program that calls [StartGuard] is its own guard and exec shim, so its main begins with
//
//	switch {
//	case supervisor.IsShim(os.Args):
//		os.Exit(supervisor.ShimMain(os.Args))
//	case supervisor.IsGuard(os.Args):
//		os.Exit(supervisor.GuardMain(os.Args, release))
//	}
//
// and then calls [Run] with a [Config]. Whoever has a [Lock] to offer adapts it; this package
// knows no Consul. From StartGuard on nothing else in the process may wait for children.
//
// guard.go is the guard as a table of states and events, holding.go the keeper's half,
// budget.go the arithmetic of the dials. sim_test.go hunts for the schedule that breaks the
// promise; see ARCHITECTURE.md.
package supervisor
