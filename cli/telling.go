package cli

import (
	"context"
	"errors"
	"os"
	"time"

	"github.com/a-seed-0bc5ead7/onlyone/consulsession"
	"github.com/a-seed-0bc5ead7/onlyone/supervisor"
	"github.com/a-seed-0bc5ead7/onlyone/telling"
)

// TellFlags say who is told of a run.
type TellFlags struct {
	Ping, PingFile             string
	ResultFile                 string
	MetricsListen, MetricsFile string
}

// teller tells a monitoring service, files and scrapers of this run. Those that nobody
// asked for are nil, and do nothing.
type teller struct {
	run     telling.Run // what is known
	began   time.Time
	started time.Time
	last    supervisor.RunResult // of the command, when it last ended
	warn    func(error)

	pinger  *telling.Pinger
	result  *telling.ResultFile
	file    *telling.Textfile
	metrics *telling.Metrics
	server  *telling.Server
}

// newTeller opens what was asked for, so that a wrong name is found before the run.
func newTeller(o RunOptions, host, periodID string) (*teller, error) {
	t := &teller{began: time.Now(), warn: func(err error) { o.Log.Warn().Msg(err.Error()) },
		run: telling.Run{Name: o.Name, Host: host, Pid: os.Getpid(), Command: o.Command, Period: periodID}}
	bad := func(err error) error { return &exitError{code: exitConfig, what: err} }
	var err error
	url := o.Tell.Ping
	if o.Tell.PingFile != "" {
		if url, err = telling.ReadPingFile(o.Tell.PingFile); err != nil {
			return nil, bad(err)
		}
	}
	if url != "" {
		if t.pinger, err = telling.NewPinger(url, telling.NewID(), t.warn); err != nil {
			return nil, bad(err)
		}
	}
	if o.Tell.ResultFile != "" {
		if t.result, err = telling.NewResultFile(o.Tell.ResultFile); err != nil {
			return nil, bad(err)
		}
	}
	if o.Tell.MetricsFile != "" {
		if t.file, err = telling.NewTextfile(o.Tell.MetricsFile, o.Name); err != nil {
			return nil, bad(err)
		}
	}
	if o.Tell.MetricsListen != "" {
		t.metrics = telling.NewMetrics(o.Name, Version)
		if t.server, err = telling.Listen(o.Tell.MetricsListen, t.metrics); err != nil {
			return nil, bad(err)
		}
	}
	return t, nil
}

// begun tells that the command was started: the first time, if it is restarted.
func (t *teller) begun() {
	if !t.started.IsZero() {
		t.metrics.Restarted()
		return
	}
	t.started = time.Now()
	t.run.Started, t.run.Waited = t.started, t.started.Sub(t.began)
	t.pinger.Start(t.run)
}

// ended tells how it all ended, and returns after 2 s at most. err is what onlyone ends with.
func (t *teller) ended(out supervisor.Outcome, err error) {
	r := t.run
	r.Exit, r.Ended, r.Outcome = exitCode(err), time.Now(), outcomeOf(out, err, t.last)
	if e, ok := errors.AsType[*exitError](err); ok && e.what != nil {
		r.Error = e.what.Error()
	}
	if !t.started.IsZero() {
		last := out.Result
		if last.Started.IsZero() { // it contended again, and was not started again
			last = t.last
		}
		r.ChildExit, r.Restarts = last.Exit, last.Restarts
		if !last.Started.IsZero() {
			r.Started = last.Started
		}
		if !last.Ended.IsZero() {
			r.Ended = last.Ended
		}
		r.Ran = max(r.Ended.Sub(r.Started), 0)
	} else {
		r.Waited = time.Since(t.began)
	}
	if r.Outcome == telling.DoneAlready {
		t.metrics.PeriodSkipped()
	}
	for _, write := range []func(telling.Run) error{t.result.Write, t.file.Write} {
		if err := write(r); err != nil {
			t.warn(err)
		}
	}
	t.pinger.End(context.Background(), r)
	t.server.Close()
}

// outcomeOf is the word for how it ended. last is the command's end in an earlier term of this onlyone,
// which couldn't get the lock again.
func outcomeOf(out supervisor.Outcome, err error, last supervisor.RunResult) string {
	switch out.Kind {
	case supervisor.Interrupted:
		if out.Result.Started.IsZero() {
			return telling.Interrupted
		}
	case supervisor.NotAcquired:
		done, isDone := errors.AsType[*consulsession.DoneError](out.Err)
		_, missed := errors.AsType[*consulsession.MissedError](out.Err)
		e, known := errors.AsType[*exitError](err)
		ran := !last.Started.IsZero()
		switch {
		case isDone && (done.Why != "never" || !ran):
			return telling.DoneAlready
		case ran && (isDone || missed || known && (e.mild || e.code == exitLost)):
			return last.Outcome
		case missed || known && e.mild:
			return telling.Conflict
		}
	}
	if out.Result.Outcome == "" {
		return telling.Failed
	}
	return out.Result.Outcome
}
