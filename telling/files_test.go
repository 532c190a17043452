package telling

import (
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// content is the file's, whose folder has nothing else (with).
func content(t *testing.T, path string, with ...string) []byte {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	entries, err := os.ReadDir(filepath.Dir(path))
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if e.Name() != filepath.Base(path) && !slices.Contains(with, e.Name()) {
			t.Errorf("%s is left beside %s", e.Name(), path)
		}
	}
	return b
}

func TestResultFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "result.json")
	f, err := NewResultFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(path); err == nil {
		t.Error("the check has made the file")
	}
	r := aRun()
	r.Exit, r.ChildExit, r.Restarts = 3, 3, 2
	if err := f.Write(r); err != nil {
		t.Fatal(err)
	}
	want := `{
  "schema": 1,
  "name": "backup",
  "host": "web-1",
  "pid": 4711,
  "command": [
    "/usr/local/bin/backup",
    "--key=<&hidden>"
  ],
  "token": 25,
  "period": "2026-11-29T03:00:00Z",
  "outcome": "exited",
  "exit": 3,
  "child_exit": 3,
  "started": "2026-11-29T03:00:01Z",
  "ended": "2026-11-29T03:00:42.25Z",
  "waited_seconds": 1.5,
  "run_seconds": 41.25,
  "restarts": 2,
  "error": null
}
`
	if got := string(content(t, path)); got != want {
		t.Errorf("got\n%s, want\n%s", got, want)
	}

	// It never ran.
	r = Run{Name: "backup", Host: "web-1", Pid: 4711, Outcome: Conflict, Exit: 75, Ended: r.Ended, Waited: time.Second, Error: "the lock is held by web-2"}
	if err := f.Write(r); err != nil {
		t.Fatal(err)
	}
	want = `{"schema":1,"name":"backup","host":"web-1","pid":4711,"command":[],"token":null,"period":null,"outcome":"conflict","exit":75,"child_exit":null,` +
		`"started":null,"ended":"2026-11-29T03:00:42.25Z","waited_seconds":1,"run_seconds":null,"restarts":0,"error":"the lock is held by web-2"}`
	var got, wanted any
	if err := json.Unmarshal(content(t, path), &got); err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal([]byte(want), &wanted); err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(got, wanted) {
		t.Errorf("got %v, want %v", got, wanted)
	}

	// A command that isn't text is JSON all the same.
	r.Command = []string{"x\xff\x00\n"}
	if err := f.Write(r); err != nil || !json.Valid(content(t, path)) {
		t.Errorf("%v: %s", err, content(t, path))
	}
}

func TestModes(t *testing.T) {
	old := syscall.Umask(0o027)
	defer syscall.Umask(old)
	dir := t.TempDir()
	result, err := NewResultFile(filepath.Join(dir, "a"))
	if err != nil {
		t.Fatal(err)
	}
	file, err := NewTextfile(filepath.Join(dir, "b.prom"), "backup")
	if err != nil {
		t.Fatal(err)
	}
	if err := result.Write(aRun()); err != nil {
		t.Fatal(err)
	}
	if err := file.Write(aRun()); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]fs.FileMode{"a": 0o640, "b.prom": 0o644} {
		fi, err := os.Stat(filepath.Join(dir, path))
		if err != nil || fi.Mode() != want {
			t.Errorf("%s: %v, %v, want %v", path, fi.Mode(), err, want)
		}
	}
}

// What can't work is said before the run.
func TestBadTargets(t *testing.T) {
	dir := t.TempDir()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(os.WriteFile(filepath.Join(dir, "file"), nil, 0o600))
	must(os.Mkdir(filepath.Join(dir, "folder.prom"), 0o700))
	must(syscall.Mkfifo(filepath.Join(dir, "fifo.prom"), 0o600))
	must(os.Symlink("none/nowhere.prom", filepath.Join(dir, "dangling.prom")))
	must(os.Symlink("/dev/null", filepath.Join(dir, "null.prom")))
	for path, want := range map[string]string{
		"none/x.prom":   "no file can be made in " + dir + "/none: no such file or directory",
		"file/x.prom":   "not a directory",
		"folder.prom":   "is not a regular file",
		"fifo.prom":     "is not a regular file",
		"dangling.prom": "no such file or directory",
		"null.prom":     "/dev/null is not a regular file",
	} {
		path = filepath.Join(dir, path)
		for what, open := range map[string]func() error{
			"the result":  func() error { _, err := NewResultFile(path); return err },
			"the metrics": func() error { _, err := NewTextfile(path, "backup"); return err },
		} {
			err := open()
			if err == nil || !strings.HasPrefix(err.Error(), "cannot write "+what+" to "+path+": ") || !strings.Contains(err.Error(), want) {
				t.Errorf("%s: %v, want %q", path, err, want)
			}
		}
	}
	must(os.Symlink("new.json", filepath.Join(dir, "link.json")))
	if r, err := NewResultFile(filepath.Join(dir, "link.json")); err != nil || r.Write(Run{Name: "x"}) != nil {
		t.Errorf("a link to a file that isn't there yet: %v", err)
	} else if _, err := os.Lstat(filepath.Join(dir, "new.json")); err != nil {
		t.Error(err)
	}
	for _, path := range []string{"", dir, "/dev/null", "/proc/version", "/dev/stdout", "/dev/fd/0"} {
		if _, err := NewResultFile(path); err == nil {
			t.Errorf("%q is taken", path)
		}
	}
	for _, path := range []string{"x", "x.prom.txt", "x.PROM", ""} {
		if _, err := NewTextfile(filepath.Join(dir, path), "backup"); err == nil || !strings.Contains(err.Error(), "names that end in .prom") {
			t.Errorf("%q: %v", path, err)
		}
	}
	if os.Getuid() == 0 {
		return // root may write everywhere
	}
	must(os.Mkdir(filepath.Join(dir, "closed"), 0o500))
	if _, err := NewResultFile(filepath.Join(dir, "closed/x")); err == nil || !strings.HasSuffix(err.Error(), ": permission denied") {
		t.Error(err)
	}
}

// A link is kept, and what it leads to is written.
func TestLinkedTarget(t *testing.T) {
	dir := t.TempDir()
	real, link := filepath.Join(dir, "real"), filepath.Join(dir, "link")
	if err := os.WriteFile(real, []byte("old"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("real", link); err != nil {
		t.Fatal(err)
	}
	f, err := NewResultFile(link)
	if err != nil {
		t.Fatal(err)
	}
	if err := f.Write(aRun()); err != nil {
		t.Fatal(err)
	}
	if fi, err := os.Lstat(link); err != nil || fi.Mode()&fs.ModeSymlink == 0 || !json.Valid(content(t, real, "link")) {
		t.Errorf("%v, %v", fi, err)
	}
}

// A relative path stays where it was, whatever the process does later; and a folder that has
// gone meanwhile is an error.
func TestTargetsThatChange(t *testing.T) {
	dir := t.TempDir()
	t.Chdir(dir)
	f, err := NewResultFile("result.json")
	if err != nil {
		t.Fatal(err)
	}
	t.Chdir("/")
	if err := f.Write(aRun()); err != nil {
		t.Fatal(err)
	}
	content(t, filepath.Join(dir, "result.json"))
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	if err := f.Write(aRun()); err == nil || !strings.Contains(err.Error(), "cannot write the result to "+dir) {
		t.Error(err)
	}
}

func textfile(t *testing.T) *Textfile {
	t.Helper()
	f, err := NewTextfile(filepath.Join(t.TempDir(), "backup.prom"), "backup")
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// expect writes r and wants these values of the lock's metrics.
func (f *Textfile) expect(t *testing.T, r Run, wanted map[string]float64) {
	t.Helper()
	if err := f.Write(r); err != nil {
		t.Fatal(err)
	}
	families := parse(t, content(t, f.path))
	isAsDescribed(t, families, FileMetrics())
	for metric, want := range wanted {
		name, labels, _ := strings.Cut(metric, " ")
		if got := value(families, name, append([]string{"name", f.name}, strings.Fields(labels)...)...); got != want {
			t.Errorf("after %s: %s is %v, want %v", r.Outcome, metric, got, want)
		}
	}
	if n := len(families["onlyone_last_outcome"].GetMetric()); n != 1 {
		t.Errorf("%d last outcomes", n)
	}
}

const ended = 1795921242.25 // aRun's, in Unix time

func TestTextfile(t *testing.T) {
	f := textfile(t)
	never := Run{Outcome: Conflict, Exit: 75, Ended: aRun().Ended.Add(-time.Hour)}
	f.expect(t, never, map[string]float64{
		"onlyone_last_attempt_timestamp_seconds": ended - 3600, "onlyone_last_outcome outcome conflict": 1, "onlyone_last_exit_code": 75,
		"onlyone_last_run_timestamp_seconds": 0, "onlyone_last_success_timestamp_seconds": 0, "onlyone_last_duration_seconds": 0, "onlyone_attempts_total outcome conflict": 1})
	f.expect(t, aRun(), map[string]float64{
		"onlyone_last_attempt_timestamp_seconds": ended, "onlyone_last_outcome outcome exited": 1, "onlyone_last_exit_code": 0,
		"onlyone_last_run_timestamp_seconds": ended, "onlyone_last_success_timestamp_seconds": ended, "onlyone_last_duration_seconds": 41.25,
		"onlyone_attempts_total outcome conflict": 1, "onlyone_attempts_total outcome exited": 1, "onlyone_attempts_total outcome lost": 0})

	for i, outcome := range []string{Exited, Signaled, Stopped, Timeout, Lost, Failed} {
		r := aRun()
		r.Outcome, r.Exit, r.ChildExit, r.Ran = outcome, 3, 3, time.Second
		if outcome == Stopped || outcome == Timeout || outcome == Lost {
			r.ChildExit = 0 // being content with a stop isn't success
		}
		r.Ended = r.Ended.Add(time.Duration(i+1) * time.Minute)
		at := ended + 60*float64(i+1)
		f.expect(t, r, map[string]float64{
			"onlyone_last_attempt_timestamp_seconds": at, "onlyone_last_outcome outcome " + outcome: 1, "onlyone_last_exit_code": 3,
			"onlyone_last_run_timestamp_seconds": at, "onlyone_last_success_timestamp_seconds": ended, "onlyone_last_duration_seconds": 1})
	}

	// An attempt that isn't a run says nothing of the last one.
	for _, outcome := range []string{Conflict, DoneAlready, Failed, Interrupted} {
		r := Run{Outcome: outcome, Exit: 0, Ended: aRun().Ended.Add(time.Hour)}
		f.expect(t, r, map[string]float64{
			"onlyone_last_attempt_timestamp_seconds": ended + 3600, "onlyone_last_outcome outcome " + outcome: 1, "onlyone_last_exit_code": 0,
			"onlyone_last_run_timestamp_seconds": ended + 360, "onlyone_last_success_timestamp_seconds": ended, "onlyone_last_duration_seconds": 1})
	}
	f.expect(t, Run{Outcome: Conflict, Ended: aRun().Ended}, map[string]float64{"onlyone_attempts_total outcome exited": 2, "onlyone_attempts_total outcome conflict": 3, "onlyone_attempts_total outcome failed": 2})
}

// Of garbage nothing is believed, and what can be read in the midst of it is.
func TestTextfileGarbage(t *testing.T) {
	success := `onlyone_last_success_timestamp_seconds{name="backup"} `
	for text, want := range map[string]float64{
		"":                              0,
		"\x00\xff garbage } {\n\n\n":    0,
		success + "1234.5\n":            1234.5,
		success + "1234.5":              1234.5,
		"junk\n" + success + "7\nonlyo": 7,
		success + "-7\n":                0,
		success + "NaN\n":               0,
		success + "+Inf\n":              0,
		success + "1e300\n":             0,
		success + "\n":                  0,
		success + "12 34\n":             0,
		success + "12 # 34\n":           0,
		success + fmt.Sprintf("%v\n", ended+23*3600):                      ended + 23*3600, // a clock was set back
		success + fmt.Sprintf("%v\n", ended+25*3600):                      0,
		`onlyone_last_success_timestamp_seconds{name="other"} 7`:          0,
		`onlyone_last_success_timestamp_seconds 7`:                        0,
		`onlyone_last_success_timestamp_seconds{name="backup",x="y"} 7`:   0,
		strings.Repeat("x", maxTextfile) + "\n" + success + "7\n":         0,
		strings.Repeat(strings.Repeat("x", 99)+"\n", 100) + success + "7": 7,
	} {
		f := textfile(t)
		if err := os.WriteFile(f.path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := f.Write(Run{Outcome: Failed, Ended: aRun().Ended}); err != nil {
			t.Fatal(err)
		}
		if got := value(parse(t, content(t, f.path)), "onlyone_last_success_timestamp_seconds", "name", "backup"); got != want {
			t.Errorf("after %.100q the last success is %v, want %v", text, got, want)
		}
	}
}

func FuzzTextfile(f *testing.F) {
	f.Add(string(history{name: "backup", outcome: Exited, attempts: map[string]float64{Exited: 3}}.text()))
	f.Add(`onlyone_attempts_total{name="backup",outcome="exited"} 1.7976931348623157e308`)
	file := &Textfile{path: filepath.Join(f.TempDir(), "backup.prom"), name: "backup"}
	f.Fuzz(func(t *testing.T, text string) {
		if err := os.WriteFile(file.path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		isAsDescribed(t, parse(t, file.read(aRun().Ended).with(aRun()).text()), FileMetrics())
		file.otherName(text)
	})
}

// Two locks that share a file would take each other's last success away.
func TestTextfileOfAnotherLock(t *testing.T) {
	f := textfile(t)
	if err := f.Write(aRun()); err != nil {
		t.Fatal(err)
	}
	if _, err := NewTextfile(f.path, "backup"); err != nil {
		t.Error(err)
	}
	_, err := NewTextfile(f.path, "batch/report")
	const refused = "it has the metrics of the lock backup, and each lock needs a file of its own"
	if err == nil || !strings.Contains(err.Error(), refused) {
		t.Error(err)
	}
	// Both began before there was a file.
	late := &Textfile{path: f.path, name: "batch/report"}
	if err := late.Write(aRun()); err == nil || !strings.Contains(err.Error(), refused) {
		t.Error(err)
	}
	f.expect(t, aRun(), map[string]float64{"onlyone_attempts_total outcome exited": 2})
}

// A FIFO that has come in the file's place must not hang the end.
func TestTextfileBecameFIFO(t *testing.T) {
	f := textfile(t)
	if err := syscall.Mkfifo(f.path, 0o600); err != nil {
		t.Fatal(err)
	}
	f.expect(t, aRun(), map[string]float64{"onlyone_last_success_timestamp_seconds": ended})
}

// Attempts of one host that end at the same time lose nothing, and a reader never sees half a
// file.
func TestConcurrentWriters(t *testing.T) {
	// In memory, where that can be had: on a busy disk one fsync takes 50 ms, and a writer that
	// waits for those of the others has its patience over, and writes without the lock.
	if dir, err := os.MkdirTemp("/dev/shm", "onlyone-test"); err == nil {
		t.Cleanup(func() { os.RemoveAll(dir) })
		t.Setenv("TMPDIR", dir)
	}
	f := textfile(t)
	if err := f.Write(aRun()); err != nil {
		t.Fatal(err)
	}
	stop, read := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(read)
		for {
			select {
			case <-stop:
				return
			default:
			}
			text, err := os.ReadFile(f.path)
			if err != nil || strings.Count(string(text), "# HELP") != len(fileMetrics) || !strings.HasSuffix(string(text), "\n") {
				t.Errorf("%v: %s", err, text)
				return
			}
		}
	}()
	var writers sync.WaitGroup
	for range 4 {
		writers.Go(func() {
			for range 5 {
				if err := f.Write(Run{Outcome: Conflict, Ended: aRun().Ended}); err != nil {
					t.Error(err)
				}
			}
		})
	}
	writers.Wait()
	close(stop)
	<-read
	f.expect(t, Run{Outcome: Failed, Ended: aRun().Ended}, map[string]float64{"onlyone_attempts_total outcome conflict": 20, "onlyone_last_success_timestamp_seconds": ended})
}

// What can't be made durable is written all the same.
func TestFolderWithoutSync(t *testing.T) {
	if err := syncFolder("/proc"); err != nil && runtime.GOOS == "linux" {
		t.Error(err)
	}
}

// A folder that somebody else keeps locked costs a second, not the file.
func TestLockedFolder(t *testing.T) {
	f := textfile(t)
	d, err := os.Open(filepath.Dir(f.path))
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	if err := syscall.Flock(int(d.Fd()), syscall.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	f.expect(t, aRun(), map[string]float64{"onlyone_last_success_timestamp_seconds": ended})
}
