package systemd

import (
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"testing"
	"time"
)

func TestTerms(t *testing.T) {
	dir, before := t.TempDir(), time.Now().Add(-time.Second)
	a, b := []byte(`{"Session":"a"}`), []byte(`{"Session":"b"}`)
	for _, info := range [][]byte{a, b, a} {
		if err := KeepTerm(dir, info); err != nil {
			t.Fatal(err)
		}
	}
	// Not whole, and somebody else's.
	os.WriteFile(filepath.Join(dir, "onlyone-0123.term~"), []byte("{"), 0o600)
	os.WriteFile(filepath.Join(dir, "other"), nil, 0o600)
	terms, err := Terms(dir)
	if err != nil || len(terms) != 2 {
		t.Fatalf("%q, %v; want two", terms, err)
	}
	files, _ := filepath.Glob(filepath.Join(dir, "*.term"))
	for _, f := range files {
		if fi, err := os.Stat(f); err != nil || fi.Mode().Perm() != 0o600 {
			t.Errorf("%s is %s, want 0600: it may hold a token", f, fi.Mode())
		}
	}
	for range 2 {
		if err := DropTerm(dir, a); err != nil {
			t.Fatal(err)
		}
	}
	if terms, err = Terms(dir); err != nil || len(terms) != 1 || string(terms[0].Info) != string(b) || terms[0].Kept.Before(before) {
		t.Errorf("%q, %v; want %q, kept now", terms, err, b)
	}
	if terms, err = Terms(filepath.Join(dir, "missing")); err != nil || len(terms) > 0 {
		t.Errorf("%q, %v; want none", terms, err)
	}
	if err := KeepTerm("", a); err != nil {
		t.Error(err)
	}
}

// Only the main process of a unit keeps terms.
func TestTermDir(t *testing.T) {
	own, other := strconv.Itoa(os.Getpid()), strconv.Itoa(os.Getpid()+1)
	for _, c := range []struct{ dirs, exec, socket, want string }{
		{"/run/a", own, "", "/run/a"},
		{"/run/a:/run/b", own, "", "/run/a"},
		{"/run/a", other, "/run/systemd/notify", ""},
		{"/run/a", "", "/run/systemd/notify", "/run/a"},
		{"/run/a", "", "", ""},
		{"", own, "", ""},
	} {
		t.Setenv("RUNTIME_DIRECTORY", c.dirs)
		t.Setenv("SYSTEMD_EXEC_PID", c.exec)
		t.Setenv("NOTIFY_SOCKET", c.socket)
		if got := TermDir(); got != c.want {
			t.Errorf("%+v: %q", c, got)
		}
	}
}

// A term that is dropped between two looks at it is none.
func TestDroppedMeanwhile(t *testing.T) {
	dir, info := t.TempDir(), []byte(`{"Session":"a"}`)
	stop := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
				_ = KeepTerm(dir, info)
				_ = DropTerm(dir, info)
			}
		}
	})
	for range 5000 {
		if terms, err := Terms(dir); err != nil || len(terms) > 0 && string(terms[0].Info) != string(info) {
			t.Errorf("%q, %v", terms, err)
			break
		}
	}
	close(stop)
	wg.Wait()
}
