package telling

import (
	"bytes"
	"encoding/json"
	"fmt"
	"time"
)

// resultSchema is the version of the result file. A new field doesn't change it; a field that
// goes, or means something else, does.
const resultSchema = 1

// result is the content of a result file; docs/telling.md describes it. All fields are always
// there, null where there is nothing to say.
type result struct {
	Schema        int      `json:"schema"`
	Name          string   `json:"name"`
	Host          string   `json:"host"`
	Pid           int      `json:"pid"`
	Command       []string `json:"command"`
	Token         *uint64  `json:"token"`
	Period        *string  `json:"period"`
	Outcome       string   `json:"outcome"`
	Exit          int      `json:"exit"`
	ChildExit     *int     `json:"child_exit"`
	Started       *string  `json:"started"`
	Ended         *string  `json:"ended"`
	WaitedSeconds float64  `json:"waited_seconds"`
	RunSeconds    *float64 `json:"run_seconds"`
	Restarts      int      `json:"restarts"`
	Error         *string  `json:"error"`
}

func newResult(r Run) result {
	out := result{Schema: resultSchema, Name: r.Name, Host: r.Host, Pid: r.Pid, Command: r.Command,
		Token: unlessZero(r.Token), Period: unlessZero(r.Period), Outcome: r.Outcome, Exit: r.Exit,
		Ended: unlessZero(stamp(r.Ended)), WaitedSeconds: r.Waited.Seconds(), Restarts: r.Restarts, Error: unlessZero(r.Error)}
	if out.Command == nil {
		out.Command = []string{}
	}
	if r.ran() {
		started, seconds := stamp(r.Started), r.Ran.Seconds()
		out.Started, out.RunSeconds, out.ChildExit = &started, &seconds, &r.ChildExit
	}
	return out
}

func unlessZero[T comparable](v T) *T {
	var zero T
	if v == zero {
		return nil
	}
	return &v
}

func stamp(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return t.UTC().Format(time.RFC3339Nano)
}

// ResultFile is a JSON file with the last run, for scripts.
type ResultFile struct{ path string }

// NewResultFile checks that path can be written. It leaves what is there.
func NewResultFile(path string) (*ResultFile, error) {
	at, err := target(path)
	if err != nil {
		return nil, fmt.Errorf("cannot write the result to %s: %w", path, err)
	}
	return &ResultFile{at}, nil
}

// Write replaces the file's content by r, also of a run in which the command never ran. Its
// mode is 0666 without the umask, as if a shell had made it.
func (f *ResultFile) Write(r Run) error {
	if f == nil {
		return nil
	}
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false) // people read it, too
	enc.SetIndent("", "  ")
	if err := enc.Encode(newResult(r)); err != nil {
		return fmt.Errorf("cannot write the result to %s: %w", f.path, err)
	}
	if err := replace(f.path, b.Bytes(), 0o666, true); err != nil {
		return fmt.Errorf("cannot write the result to %s: %w", f.path, err)
	}
	return nil
}
