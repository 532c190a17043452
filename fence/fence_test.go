//go:build linux

package fence

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// now is a context that doesn't wait.
func now() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}

func enter(t *testing.T, path string, token uint64) {
	t.Helper()
	h, err := Enter(now(), path, Record{Token: token, Host: "web-1"})
	if err != nil {
		t.Fatal(err)
	}
	h.Close()
}

func recorded(t *testing.T, path string) uint64 {
	t.Helper()
	r, _, err := Read(path)
	if err != nil {
		t.Fatal(err)
	}
	return r.Token
}

func TestEnter(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state")
	for _, token := range []uint64{1, 25, 25, 1 << 60, 1<<64 - 1} {
		enter(t, path, token)
		if got := recorded(t, path); got != token {
			t.Errorf("recorded %d, want %d", got, token)
		}
	}
	for _, token := range []uint64{1, 1<<64 - 2} {
		_, err := Enter(now(), path, Record{Token: token})
		if stale, ok := errors.AsType[*StaleError](err); !ok || stale.Seen.Token != 1<<64-1 || stale.Seen.Host != "web-1" {
			t.Errorf("token %d: %v, want a StaleError", token, err)
		}
	}
	if got := recorded(t, path); got != 1<<64-1 {
		t.Errorf("a refused token was recorded: %d", got)
	}
}

// One at a time; a token that is too old is refused without waiting, and once the wait is
// over nothing is recorded.
func TestBusy(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state")
	h, err := Enter(now(), path, Record{Token: 5, Name: "report", Host: "web-1", Pid: 7})
	if err != nil {
		t.Fatal(err)
	}
	_, err = Enter(now(), path, Record{Token: 6})
	if busy, ok := errors.AsType[*BusyError](err); !ok || busy.By.Token != 5 {
		t.Errorf("%v, want a BusyError with token 5", err)
	}
	if _, err = Enter(context.Background(), path, Record{Token: 4}); !is[*StaleError](err) {
		t.Errorf("%v, want a StaleError", err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Millisecond)
	defer cancel()
	if _, err = Enter(ctx, path, Record{Token: 6}); !is[*BusyError](err) {
		t.Errorf("%v, want a BusyError", err)
	}
	if got := recorded(t, path); got != 5 {
		t.Errorf("recorded %d, want 5", got)
	}
	// Two wait; the one before has given up, and what it left in flock(2) keeps nobody out.
	entered := make(chan error)
	for range 2 {
		go func() {
			h, err := Enter(context.Background(), path, Record{Token: 7})
			if err == nil {
				h.Close()
			}
			entered <- err
		}()
	}
	h.Close()
	for range 2 {
		if err := <-entered; err != nil {
			t.Error(err)
		}
	}
}

// A token that was still good when the wait began may be too old when it is over.
func TestStaleAfterTheWait(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state")
	enter(t, path, 5)
	lock, err := takeLock(now(), path)
	if err != nil {
		t.Fatal(err)
	}
	entered := make(chan error)
	go func() {
		_, err := Enter(context.Background(), path, Record{Token: 6})
		entered <- err
	}()
	// Until it waits for the lock: before that it must read the old record.
	for end := time.Now().Add(30 * time.Second); !waiting(t, path+".lock"); {
		if time.Now().After(end) {
			t.Fatal("nobody waits for the lock")
		}
	}
	if err := write(path, Record{Token: 9}, func(string) {}); err != nil {
		t.Fatal(err)
	}
	lock.Close()
	if err := <-entered; !is[*StaleError](err) {
		t.Errorf("%v, want a StaleError", err)
	}
	if got := recorded(t, path); got != 9 {
		t.Errorf("recorded %d, want 9", got)
	}
}

func is[E error](err error) bool { _, ok := errors.AsType[E](err); return ok }

// What isn't a record isn't touched, and the error says what is wrong with it.
func TestWhatIsNotARecord(t *testing.T) {
	for name, c := range map[string]struct{ text, says string }{
		"empty":        {"", "empty"},
		"blank":        {"\n", "empty"},
		"text":         {"42\n", "not a file of onlyone"},
		"half":         {`{"schema":1,"tok`, "not a file of onlyone"},
		"two":          {`{"schema":1,"token":5}{"schema":1,"token":6}`, "not a file of onlyone"},
		"no schema":    {`{"token":5}`, "not a file of onlyone"},
		"newer":        {`{"schema":2,"token":{}}`, "newer onlyone (schema 2"},
		"newer, plain": {`{"schema":2,"token":5}`, "newer onlyone (schema 2"},
		"no token":     {`{"schema":1}`, "no token"},
		"negative":     {`{"schema":1,"token":-1}`, "not a file of onlyone"},
		"float":        {`{"schema":1,"token":1e3}`, "not a file of onlyone"},
		"too big":      {`{"schema":1,"token":18446744073709551616}`, "not a file of onlyone"},
		"too large":    {`{"schema":1,"token":5}` + strings.Repeat(" ", maxSize), "not a file of onlyone"},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "state")
			if err := os.WriteFile(path, []byte(c.text), 0o600); err != nil {
				t.Fatal(err)
			}
			_, err := Enter(now(), path, Record{Token: 1 << 60})
			if !is[*FileError](err) || !strings.Contains(err.Error(), c.says) || !strings.Contains(err.Error(), path) {
				t.Errorf("%v, want a FileError that says %q", err, c.says)
			}
			if now, err := os.ReadFile(path); err != nil || string(now) != c.text {
				t.Errorf("it holds %q now, %v", now, err)
			}
		})
	}
}

// A later version may add fields.
func TestUnknownFields(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state")
	if err := os.WriteFile(path, []byte(`{"schema":1,"token":5,"more":{},"time":"?"}`), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Enter(now(), path, Record{Token: 4}); !is[*StaleError](err) {
		t.Errorf("%v, want a StaleError", err)
	}
	enter(t, path, 6)
}

func TestWhatIsNotAFile(t *testing.T) {
	for name, c := range map[string]struct {
		make func(path string) error
		says string
	}{
		"folder":        {func(p string) error { return os.Mkdir(p, 0o700) }, "folder"},
		"FIFO":          {func(p string) error { return syscall.Mkfifo(p, 0o600) }, "not a regular file"},
		"dangling link": {func(p string) error { return os.Symlink("nowhere", p) }, "symbolic link to nothing"},
		"link loop":     {func(p string) error { return os.Symlink(p, p) }, "can't be found"},
		"lock is a link": {func(p string) error {
			return os.Symlink(filepath.Join(filepath.Dir(p), "other"), p+".lock")
		}, "state.lock beside it can't be opened"},
		"lock is a folder": {func(p string) error { return os.Mkdir(p+".lock", 0o700) }, "state.lock beside it can't be opened"},
		"new is a folder": {func(p string) error {
			return os.MkdirAll(filepath.Join(p+".new", "full"), 0o700)
		}, "state.new beside it can't be removed"},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "state")
			if err := c.make(path); err != nil {
				t.Fatal(err)
			}
			if _, err := Enter(now(), path, Record{Token: 5}); err == nil || !strings.Contains(err.Error(), c.says) {
				t.Errorf("%v, want an error that says %q", err, c.says)
			}
			if _, err := os.Stat(filepath.Join(filepath.Dir(path), "other")); err == nil {
				t.Error("a link was followed")
			}
		})
	}
	for _, path := range []string{filepath.Join(t.TempDir(), "no", "state"), "/dev/null/state", "/proc/self/state"} {
		if _, err := Enter(now(), path, Record{Token: 5}); !is[*FileError](err) {
			t.Errorf("%s: %v, want a FileError", path, err)
		}
	}
}

// All names of a file lead to one lock, and the link stays a link.
func TestSymbolicLink(t *testing.T) {
	dir := t.TempDir()
	path, link := filepath.Join(dir, "state"), filepath.Join(t.TempDir(), "link")
	enter(t, path, 5)
	if err := os.Symlink(path, link); err != nil {
		t.Fatal(err)
	}
	h, err := Enter(now(), link, Record{Token: 6})
	if err != nil {
		t.Fatal(err)
	}
	defer h.Close()
	if _, err := Enter(now(), path, Record{Token: 7}); !is[*BusyError](err) {
		t.Errorf("%v, want a BusyError", err)
	}
	if to, err := os.Readlink(link); err != nil || to != path {
		t.Errorf("the link leads to %q, %v", to, err)
	}
	if got := recorded(t, path); got != 6 {
		t.Errorf("recorded %d, want 6", got)
	}
}

// A relative path is that of the folder it was given in, and the mode stays.
func TestModeAndRelativePath(t *testing.T) {
	t.Chdir(t.TempDir())
	enter(t, "state", 5)
	if err := os.Chmod("state", 0o640); err != nil {
		t.Fatal(err)
	}
	enter(t, "state", 6)
	if info, err := os.Stat("state"); err != nil || info.Mode().Perm() != 0o640 {
		t.Errorf("%v, %v", info.Mode(), err)
	}
	files, err := os.ReadDir(".")
	if err != nil || len(files) != 2 || files[0].Name() != "state" || files[1].Name() != "state.lock" {
		t.Errorf("%v %v, want state and state.lock", files, err)
	}
}

// Who opened the lock file before it was deleted doesn't have the lock of those who come
// after.
func TestDeletedLockFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state")
	h, err := Enter(now(), path, Record{Token: 5})
	if err != nil {
		t.Fatal(err)
	}
	entered := make(chan *Held)
	go func() {
		h, err := Enter(context.Background(), path, Record{Token: 6})
		if err != nil {
			t.Error(err)
		}
		entered <- h
	}()
	for end := time.Now().Add(30 * time.Second); !waiting(t, path+".lock"); {
		if time.Now().After(end) {
			t.Fatal("nobody waits for the lock")
		}
	}
	if err := os.Remove(path + ".lock"); err != nil {
		t.Fatal(err)
	}
	second, err := takeLock(now(), path)
	if err != nil {
		t.Fatal(err)
	}
	h.Close()
	for end := time.Now().Add(30 * time.Second); !waiting(t, path+".lock"); {
		if time.Now().After(end) {
			t.Fatal("nobody waits for the new lock")
		}
	}
	second.Close()
	if h = <-entered; h != nil {
		h.Close()
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte(`{"schema":1,"token":5,"name":"report","host":"web-1","pid":7,"time":"2026-11-29T21:24:40.661Z"}`))
	f.Add([]byte(`{"schema":2}`))
	f.Add([]byte(``))
	f.Fuzz(func(t *testing.T, text []byte) {
		if r, err := parse(text); err == nil && (r.Token == 0 || r.Schema != Schema) {
			t.Errorf("%q was taken for %+v", text, r)
		}
	})
}

// A file that another one creates between two looks at its name is no link to nothing.
func TestCreatedMeanwhile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state")
	stop := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
				_ = os.WriteFile(path, nil, 0o600)
				_ = os.Remove(path)
			}
		}
	})
	for range 20000 {
		if got, err := resolve(path); err != nil {
			t.Errorf("%s: %v", got, err)
			break
		}
	}
	close(stop)
	wg.Wait()
}
