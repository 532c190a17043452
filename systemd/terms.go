package systemd

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// With KillMode=mixed the manager kills the guard of a run as soon as the run's main process
// is dead: nobody is left to release its lock. So a run keeps in its unit's runtime
// directory what a release needs, for a command in ExecStopPost=. It is there from before
// the lock can be ours until after it is released.

const (
	termPrefix = "onlyone-"
	termSuffix = ".term"
)

// TermDir is where this process keeps its terms: the first RuntimeDirectory= of its unit.
// It is "" for a process that isn't the unit's main one, since those end by themselves and
// nobody runs ExecStopPost= after them.
func TermDir() string {
	main := os.Getenv("NOTIFY_SOCKET") != "" // before systemd 248 there is no better sign
	if pid := os.Getenv("SYSTEMD_EXEC_PID"); pid != "" {
		main = pid == strconv.Itoa(os.Getpid())
	}
	if !main {
		return ""
	}
	return RuntimeDir()
}

// RuntimeDir is the unit's first RuntimeDirectory=, or "".
func RuntimeDir() string {
	dir, _, _ := strings.Cut(os.Getenv("RUNTIME_DIRECTORY"), ":")
	return dir
}

// KeepTerm writes info down; only the unit's user may read it, as it may hold a token.
// Kept again, it is the same file. An empty dir keeps nothing.
func KeepTerm(dir string, info []byte) error {
	if dir == "" {
		return nil
	}
	file := termFile(dir, info)
	// Whole or not at all: the process may be killed at any instant.
	if err := os.WriteFile(file+"~", info, 0o600); err != nil {
		return err
	}
	return os.Rename(file+"~", file)
}

// DropTerm forgets info: its term is released.
func DropTerm(dir string, info []byte) error {
	if dir == "" {
		return nil
	}
	if err := os.Remove(termFile(dir, info)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// A Term is what a release needs, and when that was last kept: just before the lock could be the run's.
type Term struct {
	Info []byte
	Kept time.Time
}

// Terms are those that were kept and not dropped.
func Terms(dir string) ([]Term, error) {
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	var terms []Term
	for _, e := range entries {
		if !strings.HasPrefix(e.Name(), termPrefix) || !strings.HasSuffix(e.Name(), termSuffix) {
			continue
		}
		file, err := e.Info()
		var info []byte
		if err == nil {
			info, err = os.ReadFile(filepath.Join(dir, e.Name()))
		}
		switch {
		case errors.Is(err, fs.ErrNotExist): // dropped a moment ago, by the guard
		case err != nil:
			return terms, err
		default:
			terms = append(terms, Term{info, file.ModTime()})
		}
	}
	return terms, nil
}

func termFile(dir string, info []byte) string {
	sum := sha256.Sum256(info)
	return filepath.Join(dir, termPrefix+hex.EncodeToString(sum[:8])+termSuffix)
}
