package supervisor

// A Rung is one of the ways in which a command is stopped on time, or kept from getting away.
type Rung struct {
	Name string
	Use  string // what it is good for
	Err  error  // why it doesn't work here; nil: it does
	// Needed: a run can't do without. Of the others it does without what doesn't work, and
	// Lack is what it then can't promise; empty: nothing is lost.
	Needed bool
	Lack   string
	Hint   string // how to have it
}
