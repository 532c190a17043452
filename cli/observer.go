package cli

import (
	"errors"
	"strings"
	"time"

	"github.com/a-seed-0bc5ead7/onlyone/supervisor"
	"github.com/a-seed-0bc5ead7/onlyone/telling"
)

// observer tells the service manager, the terminal and those who want to be told what the
// supervisor does.
type observer struct{ *runner }

var _ supervisor.Observer = observer{}

func (o observer) State(state string) {
	o.tell.metrics.State(state)
	switch state {
	case "contending":
		o.since.Store(time.Now().UnixNano())
		o.started.Store(false)
		o.said.Store(false)
		o.tell.metrics.Released()
		o.manager.contend("standby: contending for " + o.o.Name)
	case "drained":
		o.manager.wait(always("drained: beginning nothing on this host"))
	case "running":
		o.started.Store(true)
		o.o.Status.Clear()
		o.manager.run("running: " + shown(o.o.Command))
	case "released":
		o.tell.metrics.Released()
	case "stopping", "releasing":
		o.manager.stop(state, o.told.Load())
	default:
		o.manager.stop(state, false)
	}
}

func (o observer) Acquired(t supervisor.Term) {
	o.tell.run.Token = t.Token()
	o.tell.metrics.Acquired(t.Token())
}

func (o observer) Started(int) {
	o.tell.begun()
	o.manager.started()
}

func (o observer) Ended(r supervisor.RunResult) {
	o.tell.last = r
	o.tell.metrics.Run(r.Outcome)
}

func (o observer) Lost(cause error) {
	word := telling.LostBySilence
	var proof interface{ Lost() bool }
	if errors.As(cause, &proof) {
		word = telling.LostByProof
	}
	o.tell.metrics.Lost(word)
}

func (o observer) Checked(renewal bool, err error, took time.Duration) {
	result := telling.OK
	var proof interface{ Lost() bool }
	switch {
	case errors.As(err, &proof):
		result = telling.Gone
	case err != nil:
		result = telling.Silent
	}
	if renewal {
		o.tell.metrics.Renew(result, took)
	} else {
		o.tell.metrics.Check(result, took)
	}
}

func (o observer) Extended(left time.Duration) { o.tell.metrics.Lease(left) }

// hook is a shell command line as a command. Its output goes to stderr: stdout belongs to
// the command.
func hook(line string, env []string) supervisor.Command {
	if strings.TrimSpace(line) == "" {
		return supervisor.Command{}
	}
	return supervisor.Command{Path: "/bin/sh", Args: []string{"sh", "-c", "exec </dev/null >&2\n" + line}, Env: env}
}
