package consulsession

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/hashicorp/consul/api"
)

// Claim is what a process that runs under a lock says of its term.
type Claim struct {
	Key     string // the lock key
	Session string
	Token   uint64 // the fencing token; 0 if it isn't known
}

// Verify asks Consul whether a claim still holds, until it is answered or ctx ends. The
// answer is that of one linearizable transaction. nil proves that the session held the key
// at an instant after the call began, and nothing about any later one: it must not be kept.
//
// Errors: *LostError (the claim doesn't hold), *PermissionError, *UnreachableError, or
// *ConfigError.
func Verify(ctx context.Context, conf ClientConfig, c Claim) error {
	client, rt, err := newAPI(conf, 2)
	if err != nil {
		return err
	}
	defer rt.closeIdle()
	var last error
	for {
		address := rt.address()
		err := verifyOnce(ctx, client, c)
		no, isRefused := errors.AsType[*refused](err)
		_, isLost := errors.AsType[*LostError](err)
		switch {
		case err == nil, isLost:
			return err
		case isRefused && isDenied(no.what), forbidden(err):
			return &PermissionError{cause(err), fmt.Sprintf(`key %q { policy = "read" }`, c.Key)}
		case badRequest(err), errors.Is(err, errNotConsul), isDecode(err):
			return &UnreachableError{address, cause(err)}
		case last == nil || ctx.Err() == nil:
			last = &UnreachableError{address, cause(err)} // no leader, refused, no answer: again
		}
		timer := time.NewTimer(verifyPause/2 + rand.N(verifyPause))
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return last
		}
	}
}

// verifyPause lies between two attempts; the agent of this host is asked, not the leader.
const verifyPause = 200 * time.Millisecond

// verifyOnce asks once. It leaves time for a second attempt, with another address if there
// is one.
func verifyOnce(ctx context.Context, client *api.Client, c Claim) error {
	if end, ok := ctx.Deadline(); ok {
		var done context.CancelFunc
		ctx, done = context.WithTimeout(ctx, time.Until(end)/2)
		defer done()
	}
	kv, _, err := checkSession(ctx, client, c.Key, c.Session)
	no, isRefused := errors.AsType[*refused](err)
	switch {
	case err == nil && c.Token > kv.ModifyIndex:
		// Raft's index only grows, so no acquire of this key can have had that token. A lower one
		// is no contradiction: somebody may have written to the key, which takes it from nobody.
		return &LostError{fmt.Sprintf("token %d isn't one of this lock: its newest is %d", c.Token, kv.ModifyIndex), true}
	case isRefused && strings.Contains(no.what, "doesn't exist"):
		return &LostError{"there is no such lock key", true}
	case isRefused && strings.Contains(no.what, `current session "" !=`):
		return &LostError{"nobody holds the lock", true}
	case isRefused && strings.Contains(no.what, "failed session check"):
		return &LostError{"the lock is held by another session", true}
	}
	return err // also a refusal for another reason: no answer to what was asked
}
