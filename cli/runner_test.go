package cli

import (
	"errors"
	"syscall"
	"testing"
	"time"

	"github.com/a-seed-0bc5ead7/onlyone/consulsession"
	"github.com/a-seed-0bc5ead7/onlyone/supervisor"
)

// The flags' defaults are those that supervisor derives.
func TestDefaultDialsAgree(t *testing.T) {
	if got := (supervisor.Dials{Lease: defaultLease, KillAfter: defaultKillAfter, TTL: defaultTTL, Poll: defaultPoll}); got != supervisor.DefaultDials() {
		t.Errorf("flags %+v, supervisor %+v", got, supervisor.DefaultDials())
	}
}

// What keeps a command from being executed isn't always the file.
func TestNotExecutable(t *testing.T) {
	for _, c := range []struct {
		errno syscall.Errno
		code  int
		hint  string
	}{
		{syscall.ENOENT, exitNotFound, "ls -l /bin/job"},
		{syscall.EACCES, exitNotExecutable, "ls -l /bin/job"},
		{syscall.EAGAIN, exitNotExecutable, "is a limit reached? ulimit -a"},
		{syscall.EMFILE, exitNotExecutable, "is a limit reached? ulimit -a"},
	} {
		err := notExecutable("/bin/job", c.errno, c.errno)
		if e, ok := errors.AsType[*exitError](err); !ok || e.code != c.code || e.hint != c.hint {
			t.Errorf("%v: %#v", c.errno, err)
		}
	}
}

func TestQueueText(t *testing.T) {
	now := time.Date(2026, 11, 29, 12, 0, 0, 0, time.UTC)
	web2 := consulsession.Record{Host: "web-2", Pid: 812, Since: "2026-11-29T11:48:00Z"}
	for _, c := range []struct {
		q    consulsession.Queue
		want string
	}{
		{consulsession.Queue{Position: 2, Of: 3, Holder: web2}, "2nd of 3, held by web-2 (pid 812) since 12m"},
		{consulsession.Queue{Position: 1, Of: 1, Free: true}, "1st of 1, free, but the lock-delay of its last holder is running"},
		{consulsession.Queue{Position: 1, Of: 1, Copies: 3}, "1st of 1, all 3 copies run"},
		{consulsession.Queue{Position: 1, Of: 1, Copies: 3, Done: 2}, "1st of 1, 2 of 3 copies are done, the others run"},
		{consulsession.Queue{Position: 11, Of: 13}, "11th of 13, held by a session that isn't onlyone's"},
	} {
		if got := queueText(c.q, now); got != c.want {
			t.Errorf("got  %q\nwant %q", got, c.want)
		}
	}
}
