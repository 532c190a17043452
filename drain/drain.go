package drain

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"time"
)

// systemDir is for the whole host: only root may write below /run.
const systemDir = "/run/onlyone"

// fileName is the file of a drain in its folder.
const fileName = "drain.json"

// schema is the version of the file.
const schema = 1

// maxSize is more than any file of ours: what is larger isn't one.
const maxSize = 64 << 10

// interval is how often Watch looks. A stat of a file that isn't there costs microseconds;
// inotify would need a folder that exists, a way to notice when that is replaced, and this
// as its fallback.
const interval = time.Second

// State is what the drains of a host come to. The zero State is a host that isn't drained.
type State struct {
	On     bool
	Finish bool   // what runs may finish; false: it is to be stopped in order
	Reason string // for people
	By     string // who asked for it: user@host
	File   string // which file says so; the first of several
	Since  time.Time
	Until  time.Time // by the wall clock; zero: until it is undone
}

// Equal reports whether nothing has changed from s to o.
func (s State) Equal(o State) bool {
	return s.On == o.On && s.Finish == o.Finish && s.Reason == o.Reason && s.By == o.By && s.File == o.File &&
		s.Since.Equal(o.Since) && s.Until.Equal(o.Until)
}

func (s State) String() string {
	if !s.On {
		return "not drained"
	}
	text := "drained"
	if s.By != "" {
		text += " by " + s.By
	}
	if !s.Until.IsZero() {
		text += " until " + s.Until.UTC().Format(time.RFC3339)
	}
	if s.Reason != "" {
		text += " (" + s.Reason + ")"
	}
	return text
}

// record is the file.
type record struct {
	Schema int    `json:"schema"`
	Since  string `json:"since"`           // RFC 3339
	Until  string `json:"until,omitempty"` // RFC 3339; empty: until it is undone
	Finish bool   `json:"finish"`
	Reason string `json:"reason,omitempty"`
	By     string `json:"by"`
}

// OwnDir is where this user's drains are written: the host's folder for root, else the one in
// XDG_RUNTIME_DIR, or that which pam_systemd makes for the user (cron has no
// XDG_RUNTIME_DIR). Empty: there is none.
func OwnDir() string {
	if os.Geteuid() == 0 {
		return systemDir
	}
	if dir := os.Getenv("XDG_RUNTIME_DIR"); filepath.IsAbs(dir) {
		return filepath.Join(dir, "onlyone")
	}
	dir := "/run/user/" + strconv.Itoa(os.Geteuid())
	if info, err := os.Stat(dir); err == nil && info.IsDir() {
		return filepath.Join(dir, "onlyone")
	}
	return ""
}

// Dirs are the folders that count for this process: the host's, its user's, and extra, unless
// that is empty.
func Dirs(extra string) []string {
	dirs := []string{systemDir}
	for _, dir := range []string{OwnDir(), extra} {
		if dir != "" && dir != systemDir {
			dirs = append(dirs, dir)
		}
	}
	return dirs
}

// Read says what the files in dirs come to at now. Of several drains, one that stops what
// runs counts more than one that lets it finish, and the last one to end is the end. Where a
// file can't be understood the host is drained, and err says what is wrong.
func Read(dirs []string, now time.Time) (State, error) {
	var all State
	var bad error
	for _, dir := range dirs {
		s, err := readFile(filepath.Join(dir, fileName))
		if err != nil {
			bad = errors.Join(bad, err)
		}
		if s.On && (s.Until.IsZero() || now.Before(s.Until)) {
			all = all.and(s)
		}
	}
	return all, bad
}

// and is what two drains come to.
func (s State) and(o State) State {
	if !s.On {
		return o
	}
	s.Finish = s.Finish && o.Finish
	switch {
	case s.Until.IsZero() || o.Until.IsZero():
		s.Until = time.Time{}
	case o.Until.After(s.Until):
		s.Until = o.Until
	}
	return s
}

// readFile reads one file, whether its time is over or not. What can't be looked for (it is in
// the folder of another user) isn't there.
func readFile(path string) (State, error) {
	info, err := os.Stat(path)
	if err != nil {
		return State{}, nil
	}
	s, err := parse(path, info)
	if err != nil {
		return State{On: true, File: path, Reason: "the file " + path + " can't be read: " + err.Error()}, fmt.Errorf("cannot read %s: %w", path, err)
	}
	s.File = path
	return s, nil
}

func parse(path string, info fs.FileInfo) (State, error) {
	if !info.Mode().IsRegular() { // to open a pipe would block
		return State{}, errors.New("it isn't a file")
	}
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return State{}, nil // undone a moment ago
	}
	if err != nil {
		return State{}, withoutPath(err)
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxSize))
	if err != nil {
		return State{}, withoutPath(err)
	}
	var r record
	if err := json.Unmarshal(b, &r); err != nil {
		return State{}, errors.New("it isn't JSON of onlyone's")
	}
	if r.Schema != schema {
		return State{}, fmt.Errorf("its schema is %d, this onlyone knows %d", r.Schema, schema)
	}
	s := State{On: true, Finish: r.Finish, Reason: r.Reason, By: r.By}
	if s.Since, err = parseTime(r.Since); err != nil {
		return State{}, err
	}
	s.Until, err = parseTime(r.Until)
	return s, err
}

func parseTime(s string) (time.Time, error) {
	if s == "" {
		return time.Time{}, nil
	}
	t, err := time.Parse(time.RFC3339, s)
	if err != nil {
		return t, fmt.Errorf("%.40q isn't a time", s)
	}
	return t, nil
}

func withoutPath(err error) error {
	if e, ok := errors.AsType[*fs.PathError](err); ok {
		return e.Err
	}
	return err
}

// Watch calls changed with the present state, and again whenever it has become another one,
// also when the time of a drain is over. It returns when ctx ends.
func Watch(ctx context.Context, dirs []string, changed func(State)) {
	tick := time.NewTicker(interval)
	defer tick.Stop()
	last, _ := Read(dirs, time.Now())
	changed(last)
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
		if now, _ := Read(dirs, time.Now()); !now.Equal(last) {
			last = now
			changed(now)
		}
	}
}

// Set drains with the file in dir, which is made if it is missing, and returns the file's path.
// Of s, Finish, Reason, By, Since and Until count.
func Set(dir string, s State) (path string, err error) {
	r := record{Schema: schema, Since: format(s.Since), Until: format(s.Until), Finish: s.Finish, Reason: s.Reason, By: s.By}
	b, err := json.Marshal(r)
	if err != nil {
		return "", err // only strings and a bool
	}
	path = filepath.Join(dir, fileName)
	if err := os.Mkdir(dir, 0o755); err == nil {
		err = os.Chmod(dir, 0o755) // whatever the umask is: other users read it
		if err != nil {
			return path, err
		}
	} else if !errors.Is(err, fs.ErrExist) {
		return path, err
	}
	f, err := os.CreateTemp(dir, ".drain-*")
	if err != nil {
		return path, err
	}
	defer os.Remove(f.Name()) // without effect once it is renamed
	_, err = f.Write(append(b, '\n'))
	err = errors.Join(err, f.Chmod(0o644), f.Close())
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	return path, err
}

func format(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return t.UTC().Format(time.RFC3339Nano)
}

// Clear undoes the drain of dir and reports whether there was one.
func Clear(dir string) (was bool, err error) {
	err = os.Remove(filepath.Join(dir, fileName))
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return err == nil, err
}
