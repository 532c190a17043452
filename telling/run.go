package telling

import "time"

// Run is what is told about one run. A field that isn't known yet, or never will be, is zero.
type Run struct {
	Name    string   // of the lock
	Host    string   // where it ran
	Pid     int      // of onlyone
	Command []string // as it was executed
	Token   uint64   // the fencing token; 0: the lock was never held
	Period  string   // of --once-per

	Outcome   string // one of the constants below; empty while it runs
	Exit      int    // what onlyone ends with, 128 + n for signal n
	ChildExit int    // the same of the command; without meaning if it never ran
	Error     string // what went wrong

	Started time.Time // the command's start; zero: it never ran
	Ended   time.Time // the command's end; if it never ran, when onlyone gave up
	Waited  time.Duration
	Ran     time.Duration // from Started to Ended by a clock that doesn't jump

	Restarts int // how often the command was started again under the same lock
}

// The outcomes of a run.
const (
	Exited      = "exited"       // the command ran to its end
	Signaled    = "signaled"     // a signal ended it that onlyone hadn't sent
	Stopped     = "stopped"      // it was told to stop and did
	Timeout     = "timeout"      // it was stopped for running too long
	Lost        = "lost"         // it was stopped because the lock was lost
	Failed      = "failed"       // it couldn't be run, or onlyone failed
	Conflict    = "conflict"     // it never ran: the lock was taken, the wait over, or paused
	DoneAlready = "done-already" // it never ran: this period's run is done
	Interrupted = "interrupted"  // it never ran: onlyone was told to stop while it waited
)

// outcomes is in the order in which they are documented.
var outcomes = []string{Exited, Signaled, Stopped, Timeout, Lost, Failed, Conflict, DoneAlready, Interrupted}

// ran reports whether the command was started.
func (r Run) ran() bool { return !r.Started.IsZero() }

// succeeded: the command ran to its end and was content. One that was told to stop hasn't
// finished its work, whatever it exits with.
func (r Run) succeeded() bool { return r.ran() && r.Outcome == Exited && r.ChildExit == 0 }
