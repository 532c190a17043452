package fence

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"golang.org/x/sys/unix"
)

// A StaleError says that a higher token was seen before.
type StaleError struct {
	Path  string
	Token uint64
	Seen  Record
}

func (e *StaleError) Error() string {
	return fmt.Sprintf("token %d is too old: %s has seen %s", e.Token, e.Path, e.Seen)
}

// A BusyError says that another one works, and that the wait for it is over.
type BusyError struct {
	Path string
	By   Record // the zero Record if that one has not recorded its token yet
}

func (e *BusyError) Error() string {
	if e.By == (Record{}) {
		return fmt.Sprintf("the lock of %s is held", e.Path)
	}
	return fmt.Sprintf("the lock of %s is held, probably by %s", e.Path, e.By)
}

func (r Record) String() string {
	s := fmt.Sprintf("token %d", r.Token)
	if r.Name != "" {
		s += " of " + r.Name
	}
	if r.Host != "" {
		s += fmt.Sprintf(" from %s (pid %d)", r.Host, r.Pid)
	}
	if !r.Time.IsZero() {
		s += " at " + r.Time.UTC().Format("2006-01-02T15:04:05Z")
	}
	return s
}

// Held is a file's lock with a recorded token.
type Held struct{ lock *os.File }

// Enter waits for the lock of the file at path, until ctx ends; if it is free, it is taken
// even then. It refuses a token that is lower than the recorded one, at once, or records r.
//
// Errors: *StaleError, *BusyError, *FileError, or what the system said.
func Enter(ctx context.Context, path string, r Record) (*Held, error) {
	path, err := resolve(path)
	if err != nil {
		return nil, err
	}
	// An old holder needn't wait for the new one to hear that it is too late.
	if err := admit(path, r.Token); err != nil {
		return nil, err
	}
	lock, err := takeLock(ctx, path)
	if err != nil {
		return nil, err
	}
	h := &Held{lock}
	if err = admit(path, r.Token); err == nil {
		err = write(path, r, func(string) {})
	}
	if err != nil {
		h.Close()
		return nil, err
	}
	return h, nil
}

// admit refuses a token that is lower than the recorded one.
func admit(path string, token uint64) error {
	seen, exists, err := Read(path)
	if err == nil && exists && token < seen.Token {
		return &StaleError{path, token, seen}
	}
	return err
}

// resolve follows symbolic links, so that all names of one file lead to one lock.
func resolve(path string) (string, error) {
	real, err := filepath.EvalSymlinks(path)
	if err == nil {
		return filepath.Abs(real)
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return "", problem(path, "it can't be found", err)
	}
	// What is there now and is no link was created a moment ago.
	if info, err := os.Lstat(path); err == nil && info.Mode()&fs.ModeSymlink != 0 {
		return "", &FileError{Path: path, Problem: "it is a symbolic link to nothing"}
	}
	dir, err := filepath.EvalSymlinks(filepath.Dir(path))
	if err != nil {
		return "", problem(path, "its folder can't be found", err)
	}
	return filepath.Abs(filepath.Join(dir, filepath.Base(path)))
}

// takeLock locks FILE.lock. Not FILE: a rename gives its name to another inode, and whoever
// opened it before and after would each have a lock. Not the folder: it may have the files
// of several locks, and be a mount point that others lock for their own reasons.
func takeLock(ctx context.Context, path string) (*os.File, error) {
	name := path + ".lock"
	for {
		// For writing: NFS makes of flock a lock for writing, and that needs such a descriptor.
		f, err := os.OpenFile(name, os.O_RDWR|unix.O_NOFOLLOW, 0)
		if errors.Is(err, fs.ErrNotExist) {
			f, err = os.OpenFile(name, os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW, 0o666)
		}
		if err != nil {
			return nil, problem(path, filepath.Base(name)+" beside it can't be opened", err)
		}
		if err := flock(ctx, f); err != nil {
			if ctx.Err() != nil && errors.Is(err, ctx.Err()) {
				by, _, _ := Read(path)
				return nil, &BusyError{path, by}
			}
			f.Close()
			return nil, problem(path, filepath.Base(name)+" beside it can't be locked", err)
		}
		// If it was deleted before we had the lock, others lock another file by that name.
		if ours, err := f.Stat(); err == nil {
			if now, err := os.Stat(name); err == nil && os.SameFile(ours, now) {
				return f, nil
			}
		}
		f.Close()
		if err := ctx.Err(); err != nil {
			return nil, &BusyError{Path: path}
		}
	}
}

// flock locks f. When ctx ends first it returns ctx's error, and f is not the caller's any
// more: a goroutine stays in flock(2), which nothing can interrupt, and closes f when it
// comes back. The caller ends soon, and with it the goroutine.
func flock(ctx context.Context, f *os.File) error {
	err := retryEINTR(func() error { return unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB) })
	if !errors.Is(err, unix.EWOULDBLOCK) {
		return err
	}
	if err := ctx.Err(); err != nil {
		f.Close()
		return err
	}
	locked := make(chan error)
	go func() {
		err := retryEINTR(func() error { return unix.Flock(int(f.Fd()), unix.LOCK_EX) })
		select {
		case locked <- err:
		case <-ctx.Done():
			f.Close()
		}
	}()
	select {
	case err := <-locked:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

func retryEINTR(f func() error) error {
	for {
		if err := f(); !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

// write replaces the record durably: a new file, fsync, rename, fsync of the folder. at is
// told each step, for tests.
func write(path string, r Record, at func(step string)) error {
	r.Schema = Schema
	text, err := json.Marshal(r)
	if err != nil {
		return fmt.Errorf("cannot write the record: %w", err)
	}
	// One name is enough, since we have the lock; what a crash has left is no use to anybody.
	temp := path + ".new"
	if err := os.Remove(temp); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return problem(path, filepath.Base(temp)+" beside it can't be removed", err)
	}
	f, err := os.OpenFile(temp, os.O_WRONLY|os.O_CREATE|os.O_EXCL|unix.O_NOFOLLOW, 0o666)
	if err != nil {
		return problem(path, filepath.Base(temp)+" beside it can't be created", err)
	}
	defer f.Close()
	likeBefore(f, path)
	at("created")
	half := len(text) / 2
	if _, err = f.Write(text[:half]); err == nil {
		at("half written")
		_, err = f.Write(append(text[half:], '\n'))
	}
	at("written")
	if err == nil {
		err = f.Sync()
	}
	at("synced")
	if err == nil {
		err = os.Rename(temp, path)
	}
	at("renamed")
	if err != nil {
		return problem(path, "the token can't be recorded", err)
	}
	err = syncDir(filepath.Dir(path))
	at("recorded")
	return err
}

// likeBefore keeps mode and owner of the file that is replaced, as far as we may.
func likeBefore(f *os.File, path string) {
	info, err := os.Stat(path)
	if err != nil {
		return
	}
	if owner, ok := info.Sys().(*syscall.Stat_t); ok {
		_ = f.Chown(int(owner.Uid), int(owner.Gid))
	}
	_ = f.Chmod(info.Mode().Perm())
}

// syncDir makes a rename durable.
func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return problem(dir, "it can't be opened to make the record durable", err)
	}
	defer d.Close()
	if err := d.Sync(); err != nil && !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOTSUP) {
		return fmt.Errorf("cannot make the record in %s durable: %w", dir, bare(err))
	}
	return nil
}

// Inherit lets a program that is executed next have the lock: it, and all that inherits its
// descriptor, hold it. The descriptor has a high number, where no script looks for one.
func (h *Held) Inherit() error {
	for _, least := range []int{700, 100, 10, 3} { // as many as are allowed here may be fewer
		if _, err := unix.FcntlInt(h.lock.Fd(), unix.F_DUPFD, least); err == nil {
			return nil
		}
	}
	return errors.New("cannot pass the lock on: there is no free descriptor")
}

// Close gives the lock back, unless somebody has inherited it.
func (h *Held) Close() { h.lock.Close() }
