package consulsession

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"syscall"

	"github.com/hashicorp/consul/api"
)

// HeldError says that the lock is somebody else's and the caller doesn't wait.
type HeldError struct {
	By      Record // zero fields where the holder isn't an onlyone
	Why     string // set when nobody holds it but it can't be had: "lock-delay", "queue"
	Waiting int
	Copies  int // so many are held, By one of them; 0 without copies
	Done    int // so many of them aren't, since their period is done
}

func (e *HeldError) Error() string {
	switch e.Why {
	case "lock-delay":
		return "free soon: its last holder ended without releasing, and the lock-delay of its lease isn't over"
	case "queue":
		return fmt.Sprintf("about to be taken: %d contender(s) are queued", e.Waiting)
	}
	if e.Done > 0 {
		return fmt.Sprintf("held: %d of its %d copies are done in this period, the others run", e.Done, e.Copies)
	}
	if e.Copies > 0 {
		return fmt.Sprintf("held: all of its %d copies run", e.Copies)
	}
	if e.By.Host == "" {
		return "held by a session that isn't onlyone's"
	}
	return fmt.Sprintf("held by %s (pid %d) since %s", e.By.Host, e.By.Pid, e.By.Since)
}

// PausedError says that the lock is paused and the caller doesn't wait.
type PausedError struct{ Order Order }

func (e *PausedError) Error() string { return fmt.Sprintf("paused %s", e.Order) }

// ForeignKeyError says that the lock key is used for something else.
type ForeignKeyError struct {
	Key   string
	Flags uint64
}

func (e *ForeignKeyError) Error() string {
	return fmt.Sprintf("key %s is not a lock: its flags are %#x, those of a lock are %#x", e.Key, e.Flags, uint64(api.LockFlagValue))
}

// PermissionError says that the token lacks a right.
type PermissionError struct {
	Cause error
	Rule  string // the ACL rules that onlyone needs
}

func (e *PermissionError) Error() string {
	first, _, _ := strings.Cut(e.Cause.Error(), "; Permission denied") // a transaction has one for each key
	return "permission denied: " + first
}
func (e *PermissionError) Unwrap() error { return e.Cause }

// UnreachableError says that Consul gave no usable answer.
type UnreachableError struct {
	Address string
	Cause   error
}

func (e *UnreachableError) Error() string {
	if refusesQuery(e.Cause) {
		return fmt.Sprintf("cannot use Consul at %s: %v", e.Address, e.Cause)
	}
	return fmt.Sprintf("cannot reach Consul at %s: %v", e.Address, e.Cause)
}
func (e *UnreachableError) Unwrap() error { return e.Cause }

// Hint is what to look at.
func (e *UnreachableError) Hint() string { return whereConsulIs(e.Address, e.Cause) }

func whereConsulIs(address string, err error) string {
	hint := "check CONSUL_HTTP_ADDR or --http-addr, and: curl " + address + "/v1/status/leader"
	switch {
	case errors.Is(err, syscall.ECONNREFUSED):
		return "is the agent running? Else " + hint
	case refusesQuery(err):
		return "are --namespace, --partition and --datacenter right (CONSUL_NAMESPACE, CONSUL_PARTITION)?"
	}
	return hint
}

// refusesQuery: it is a Consul, which doesn't know what all requests have (agent/http_ce.go of its
// source). A server that wants https says 400, too.
func refusesQuery(err error) bool {
	s, ok := errors.AsType[*StatusError](err)
	return ok && s.Code == http.StatusBadRequest && strings.Contains(s.Error(), "a Consul Enterprise feature")
}

// ConnectionLimitError says that the agent takes no more connections from this host. Consul
// 1.14 says so, if that isn't lost; 1.8 closes the connection without a word, as other things do.
type ConnectionLimitError struct{ Told bool }

func (e *ConnectionLimitError) Error() string {
	const limit = "http_max_conns_per_client, 200 by default"
	if e.Told {
		return "it takes no more connections from this host (its limit is " + limit + ")"
	}
	return "it closes the connection without an answer, as Consul does when a host has too many (its limit is " + limit + "), and as what isn't its HTTP port (8500) may do"
}

// LostError proves that a lock that was ours isn't any more.
type LostError struct {
	Reason string
	Free   bool // somebody else may hold it already: no lock-delay protects us
}

func (e *LostError) Error() string { return e.Reason }

// Lost reports Free.
func (e *LostError) Lost() (free bool) { return e.Free }

// errNotRenewed: a leader that hadn't caught up didn't know the session. The next renewal will do.
var errNotRenewed = errors.New("the leader doesn't know the session yet")

// errSessionGone: our session doesn't exist any more.
var errSessionGone = errors.New("the session is gone")

// cause unwraps what net/http put around an error, whose URL shows an internal name.
func cause(err error) error {
	var u interface {
		error
		Timeout() bool
		Unwrap() error
	}
	if errors.Is(err, context.DeadlineExceeded) {
		return errors.New("no answer in time")
	}
	if errors.As(err, &u) && u.Unwrap() != nil {
		return u.Unwrap()
	}
	return err
}

// forbidden reports whether err says that the token isn't known or lacks a right.
func forbidden(err error) bool {
	s, ok := errors.AsType[*StatusError](err)
	return ok && (s.Code == http.StatusForbidden || s.Code == http.StatusUnauthorized)
}

// badRequest: an answer that no retry will mend (it isn't Consul that answers).
func badRequest(err error) bool {
	if s, ok := errors.AsType[api.StatusError](err); ok { // what the transport lets through
		return s.Code == http.StatusNotFound
	}
	s, ok := errors.AsType[*StatusError](err)
	return ok && s.Code >= 300 && s.Code < 500 && s.Code != http.StatusTooManyRequests && s.Code != http.StatusRequestTimeout
}

// badSetting is Consul's word for a session that can't be, if err is one.
func badSetting(err error) (what string, ok bool) {
	s, ok := errors.AsType[*StatusError](err)
	if !ok || s.Code != http.StatusInternalServerError {
		return "", false
	}
	for _, text := range []string{"Invalid Session TTL", "Missing node registration", "Missing check", "No path to datacenter"} {
		if strings.Contains(s.Body, text) {
			return s.Body, true
		}
	}
	return "", false
}

// txnErrors is what a refused transaction says, one text an operation.
func txnErrors(r *api.TxnResponse) string {
	var what []string
	if r != nil {
		for _, e := range r.Errors {
			what = append(what, e.What)
		}
	}
	if len(what) == 0 {
		return "refused without a reason"
	}
	return strings.Join(what, "; ")
}

// Causes of a refused transaction, by the texts of agent/consul/state/kvs.go and
// kvs_endpoint.go (the same in 1.8.7, 1.14.11 and 1.22.0). A 409 has no code for them.
func isLockDelay(what string) bool { return strings.Contains(what, "due to lock delay") }
func isHeld(what string) bool      { return strings.Contains(what, "lock is already held") }
func isStale(what string) bool {
	return strings.Contains(what, "index is stale") || strings.Contains(what, "failed index check") || strings.Contains(what, "failed to check index")
}
func isInvalidSession(what string) bool { return strings.Contains(what, "invalid session") }
func isDenied(what string) bool {
	return strings.Contains(what, "Permission denied") || strings.Contains(what, "ACL not found")
}
