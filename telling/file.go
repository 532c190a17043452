package telling

import (
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// target checks that path can be written, before anything runs, and returns where it really
// is: absolute, and behind symbolic links, since a rename would replace the link.
func target(path string) (string, error) {
	path, err := filepath.Abs(path)
	if err != nil {
		return "", err
	}
	if _, err := os.Lstat(path); err == nil {
		if path, err = follow(path); err != nil {
			return "", err
		}
		fi, err := os.Stat(path)
		if err == nil && !fi.Mode().IsRegular() {
			// A rename to /dev/null would replace it, for everybody.
			return "", fmt.Errorf("%s is not a regular file", path)
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return "", err
		}
	} else if !errors.Is(err, fs.ErrNotExist) {
		return "", err
	}
	// Only a try tells of a read-only file system, a quota and rights of every kind.
	f, err := createBeside(path, 0o600)
	if err != nil {
		return "", err
	}
	f.Close()
	return path, os.Remove(f.Name())
}

// follow is where symbolic links lead, also to a file that isn't there yet.
func follow(path string) (string, error) {
	for range 40 { // as the kernel does
		if strings.HasPrefix(path, "/proc/") || strings.HasPrefix(path, "/dev/fd/") {
			// What a shell has opened there (>>log) would be replaced by a new file.
			return "", fmt.Errorf("%s is an open file, not one that can be replaced", path)
		}
		to, err := os.Readlink(path)
		if err != nil { // no link, or not there
			dir, err := filepath.EvalSymlinks(filepath.Dir(path))
			return filepath.Join(dir, filepath.Base(path)), err
		}
		if !filepath.IsAbs(to) {
			to = filepath.Join(filepath.Dir(path), to)
		}
		path = to
	}
	return "", fmt.Errorf("%s has too many symbolic links", path)
}

// replace makes content the whole content of path: a reader, and a machine that loses its
// power, has the old one or the new. mode has the umask taken off, as for any new file, if
// umasked.
func replace(path string, content []byte, mode fs.FileMode, umasked bool) (err error) {
	f, err := createBeside(path, mode)
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			f.Close()
			os.Remove(f.Name())
		}
	}()
	if !umasked {
		if err := f.Chmod(mode); err != nil {
			return err
		}
	}
	if _, err := f.Write(content); err != nil {
		return err
	}
	if err := f.Sync(); err != nil {
		return err
	}
	if err := f.Close(); err != nil {
		return err
	}
	if err := os.Rename(f.Name(), path); err != nil {
		return err
	}
	return syncFolder(filepath.Dir(path))
}

// createBeside makes a new file in the folder of path. Its name begins with a dot and doesn't
// end in .prom, so that no collector takes it. os.CreateTemp would leave the umask out.
func createBeside(path string, mode fs.FileMode) (*os.File, error) {
	var f *os.File
	err := error(fs.ErrExist)
	for try := 0; try < 10 && errors.Is(err, fs.ErrExist); try++ {
		name := fmt.Sprintf(".onlyone-%016x.tmp", rand.Uint64())
		f, err = os.OpenFile(filepath.Join(filepath.Dir(path), name), os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode)
	}
	if e, ok := errors.AsType[*fs.PathError](err); ok { // whose path is a name that nobody has typed
		err = fmt.Errorf("no file can be made in %s: %w", filepath.Dir(path), e.Err)
	}
	return f, err
}

// syncFolder makes a rename in it durable. A folder that may be written but not read can't be
// synced, nor can any on some file systems (FUSE).
func syncFolder(dir string) error {
	d, err := os.Open(dir)
	if errors.Is(err, fs.ErrPermission) {
		return nil
	}
	if err != nil {
		return err
	}
	defer d.Close()
	if err := d.Sync(); err != nil && !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOTSUP) {
		return err
	}
	return nil
}

// lockPatience bounds the wait for another writer, who needs a few fsyncs.
const lockPatience = time.Second

// lockFolder keeps two writers of one host from overwriting what the other one has just
// added. It is advisory and bounded: who can't have it in a second goes on without.
func lockFolder(dir string) (unlock func()) {
	d, err := os.Open(dir)
	if err != nil {
		return func() {}
	}
	tick := time.NewTicker(lockPatience / 50)
	defer tick.Stop()
	for range 50 {
		if err := unix.Flock(int(d.Fd()), unix.LOCK_EX|unix.LOCK_NB); !errors.Is(err, unix.EWOULDBLOCK) && !errors.Is(err, unix.EINTR) {
			break
		}
		<-tick.C
	}
	return func() { d.Close() }
}
