package drain

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"
)

var noon = time.Date(2026, 11, 29, 12, 0, 0, 0, time.UTC)

func set(t *testing.T, dir string, s State) {
	t.Helper()
	if _, err := Set(dir, s); err != nil {
		t.Fatal(err)
	}
}

func write(t *testing.T, dir, text string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(dir, fileName), []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

func TestSetReadClear(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "onlyone")
	if s, err := Read([]string{dir}, noon); s.On || err != nil {
		t.Fatalf("without a folder: %v, %v", s, err)
	}
	want := State{Finish: true, Reason: "new kernel", By: "ops@web-1", Since: noon, Until: noon.Add(time.Hour)}
	old := syscall.Umask(0o077)
	set(t, dir, want)
	syscall.Umask(old)
	want.On, want.File = true, filepath.Join(dir, fileName)
	s, err := Read([]string{dir}, noon.Add(time.Hour-1))
	if err != nil || !s.Equal(want) {
		t.Errorf("got %+v, %v, want %+v", s, err, want)
	}
	if s, err := Read([]string{dir}, noon.Add(time.Hour)); s.On || err != nil {
		t.Errorf("its time is over: %+v, %v", s, err)
	}
	for path, mode := range map[string]os.FileMode{dir: 0o755 | os.ModeDir, want.File: 0o644} {
		if info, err := os.Stat(path); err != nil || info.Mode() != mode {
			t.Errorf("%s: %v, %v, want mode %v", path, info, err, mode)
		}
	}
	set(t, dir, State{Since: noon}) // in the place of the old one, without an end
	if s, err := Read([]string{dir}, noon.AddDate(50, 0, 0)); !s.On || s.Finish || !s.Until.IsZero() || err != nil {
		t.Errorf("%+v, %v", s, err)
	}
	if entries, _ := os.ReadDir(dir); len(entries) != 1 {
		t.Errorf("the folder has %v, want the one file", entries)
	}
	for _, was := range []bool{true, false} {
		if got, err := Clear(dir); got != was || err != nil {
			t.Errorf("clear: %v, %v, want %v", got, err, was)
		}
	}
	if s, _ := Read([]string{dir}, noon); s.On {
		t.Error("still drained")
	}
}

// What is there and can't be understood drains the host.
func TestGarbageDrains(t *testing.T) {
	for name, text := range map[string]string{
		"empty": "", "half": `{"schema":1,"fin`, "not ours": `[]`, "no schema": `{}`, "newer": `{"schema":2}`, "null": "null",
		"bad time": `{"schema":1,"until":"tomorrow"}`, "bad since": `{"schema":1,"since":"yesterday"}`, "wrong type": `{"schema":1,"finish":"yes"}`,
		"long": `{"schema":1,"reason":"` + strings.Repeat("x", maxSize) + `"}`, "bytes": "\x00\xff",
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			write(t, dir, text)
			s, err := Read([]string{dir}, noon)
			if !s.On || s.Finish || !s.Until.IsZero() || err == nil || !strings.Contains(s.Reason, "can't be read") {
				t.Errorf("%+v, %v", s, err)
			}
		})
	}
	t.Run("folder", func(t *testing.T) {
		dir := t.TempDir()
		if err := os.Mkdir(filepath.Join(dir, fileName), 0o755); err != nil {
			t.Fatal(err)
		}
		if s, err := Read([]string{dir}, noon); !s.On || err == nil {
			t.Errorf("%+v, %v", s, err)
		}
	})
	t.Run("pipe", func(t *testing.T) {
		dir := t.TempDir()
		if err := syscall.Mkfifo(filepath.Join(dir, fileName), 0o644); err != nil {
			t.Fatal(err)
		}
		if s, err := Read([]string{dir}, noon); !s.On || err == nil {
			t.Errorf("%+v, %v", s, err)
		}
	})
}

func TestSeveralFiles(t *testing.T) {
	system, own, none := t.TempDir(), t.TempDir(), filepath.Join(t.TempDir(), "none")
	dirs := []string{none, system, own}
	set(t, own, State{Finish: true, Reason: "own", Until: noon.Add(2 * time.Hour)})
	if s, _ := Read(dirs, noon); !s.On || !s.Finish || s.Reason != "own" {
		t.Errorf("the own one: %+v", s)
	}
	set(t, system, State{Reason: "system", Until: noon.Add(time.Hour)})
	if s, _ := Read(dirs, noon); !s.On || s.Finish || s.Reason != "system" || !s.Until.Equal(noon.Add(2*time.Hour)) {
		t.Errorf("both: %+v", s)
	}
	if s, _ := Read([]string{own, system}, noon); s.Finish || s.Reason != "own" {
		t.Errorf("both, the other way round: %+v", s)
	}
	if s, _ := Read(dirs, noon.Add(time.Hour)); !s.On || !s.Finish || s.Reason != "own" {
		t.Errorf("one is over: %+v", s)
	}
	set(t, system, State{Reason: "system"})
	if s, _ := Read(dirs, noon); !s.Until.IsZero() {
		t.Errorf("one has no end: %+v", s)
	}
}

// The folder of another user doesn't drain us: XDG_RUNTIME_DIR survives su.
func TestForeignFolder(t *testing.T) {
	if os.Geteuid() == 0 {
		t.Skip("root may look into any folder")
	}
	dir := t.TempDir()
	write(t, dir, "garbage")
	if err := os.Chmod(dir, 0); err != nil {
		t.Fatal(err)
	}
	defer os.Chmod(dir, 0o755)
	if s, err := Read([]string{dir}, noon); s.On || err != nil {
		t.Errorf("%+v, %v", s, err)
	}
}

func TestWatch(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		var seen []string
		note := func(s State) {
			word := "off"
			if s.On {
				word = "on " + s.Reason
			}
			seen = append(seen, time.Since(start).String()+" "+word)
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { Watch(ctx, []string{dir}, note); close(done) }()
		time.Sleep(5500 * time.Millisecond)
		set(t, dir, State{Reason: "a", Until: start.Add(10 * time.Second)})
		time.Sleep(2 * time.Second)
		set(t, dir, State{Reason: "b", Until: start.Add(10 * time.Second)})
		time.Sleep(5 * time.Second)
		set(t, dir, State{Reason: "c"})
		time.Sleep(time.Hour)
		if _, err := Clear(dir); err != nil {
			t.Error(err)
		}
		time.Sleep(time.Hour)
		cancel()
		<-done
		want := []string{"0s off", "6s on a", "8s on b", "10s off", "13s on c", "1h0m13s off"}
		if !slices.Equal(seen, want) {
			t.Errorf("got %q, want %q", seen, want)
		}
	})
}

// Whoever reads while it is written sees a whole file.
func TestReplacedAsAWhole(t *testing.T) {
	dir := t.TempDir()
	set(t, dir, State{Reason: strings.Repeat("x", 4000)})
	done := make(chan struct{})
	go func() {
		defer close(done)
		for i := range 300 {
			if _, err := Set(dir, State{Reason: strings.Repeat("y", 4000+i%2)}); err != nil {
				t.Error(err)
			}
		}
	}()
	for {
		if s, err := Read([]string{dir}, noon); !s.On || err != nil {
			t.Fatalf("%+v, %v", s, err)
		}
		select {
		case <-done:
			return
		default:
		}
	}
}

func TestDirs(t *testing.T) {
	t.Setenv("XDG_RUNTIME_DIR", "/run/user/4711")
	want := []string{"/run/onlyone"}
	if os.Geteuid() != 0 {
		want = append(want, "/run/user/4711/onlyone")
	}
	if got := Dirs("/x"); !slices.Equal(got, append(want, "/x")) {
		t.Errorf("%q", got)
	}
	if got := Dirs(""); !slices.Equal(got, want) {
		t.Errorf("%q", got)
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte(`{"schema":1,"since":"2026-11-29T12:00:00Z","until":"2026-11-29T12:00:00Z","finish":true,"reason":"r","by":"b"}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		dir := t.TempDir()
		write(t, dir, string(b))
		s, err := Read([]string{dir}, noon)
		if err != nil && !s.On {
			t.Fatalf("%q: %+v, %v", b, s, err)
		}
	})
}
