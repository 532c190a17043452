package fence

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"syscall"
	"time"
)

// Schema is the version of the file.
const Schema = 1

// Record is what the file says: the highest token that was seen, and whose it was. All but
// the token is for people.
type Record struct {
	Schema int       `json:"schema"`
	Token  uint64    `json:"token"`
	Name   string    `json:"name,omitempty"` // of the lock
	Host   string    `json:"host"`
	Pid    int       `json:"pid"`
	Time   time.Time `json:"time"` // when it was recorded, by the writer's wall clock
}

// maxSize is far more than a record needs: what is larger isn't one.
const maxSize = 64 << 10

// A FileError says that the file, or its folder, can't be used until somebody looks at it.
type FileError struct {
	Path    string
	Problem string
	Cause   error // may be nil
}

func (e *FileError) Error() string {
	if e.Cause != nil {
		return fmt.Sprintf("cannot use %s: %s: %v", e.Path, e.Problem, e.Cause)
	}
	return fmt.Sprintf("cannot use %s: %s", e.Path, e.Problem)
}

func (e *FileError) Unwrap() error { return e.Cause }

// Read reads the file without its lock; it is whole at any time. exists is false if there
// is no file. Errors that somebody has to look at are *FileError.
func Read(path string) (r Record, exists bool, err error) {
	// O_NONBLOCK: a FIFO without a writer must not block.
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return Record{}, false, nil
	}
	if err != nil {
		return Record{}, false, problem(path, "it can't be read", err)
	}
	defer f.Close()
	info, err := f.Stat()
	switch {
	case err != nil:
		return Record{}, false, fmt.Errorf("cannot look at %s: %w", path, err)
	case info.IsDir():
		return Record{}, false, &FileError{Path: path, Problem: "it is a folder"}
	case !info.Mode().IsRegular():
		return Record{}, false, &FileError{Path: path, Problem: "it is not a regular file"}
	}
	text, err := io.ReadAll(io.LimitReader(f, maxSize+1))
	if err != nil {
		return Record{}, false, fmt.Errorf("cannot read %s: %w", path, bare(err))
	}
	if r, err = parse(text); err != nil {
		return Record{}, false, &FileError{Path: path, Problem: err.Error()}
	}
	return r, true, nil
}

var errNotOurs = errors.New("it is not a file of onlyone fence")

// parse reads a record. Fields that it doesn't know are of a later version with the same
// meaning of the others; a newer schema isn't.
func parse(text []byte) (Record, error) {
	if len(bytes.TrimSpace(text)) == 0 {
		return Record{}, errors.New("it is empty, so what it knew is lost")
	}
	var version struct {
		Schema int `json:"schema"`
	}
	if len(text) > maxSize || json.Unmarshal(text, &version) != nil || version.Schema < 1 {
		return Record{}, errNotOurs
	}
	if version.Schema > Schema {
		return Record{}, fmt.Errorf("it was written by a newer onlyone (schema %d, this one knows %d)", version.Schema, Schema)
	}
	var r struct {
		Record
		Time string `json:"time"` // for people: no reason to refuse
	}
	switch {
	case json.Unmarshal(text, &r) != nil:
		return Record{}, errNotOurs
	case r.Token == 0:
		return Record{}, errors.New("it has no token")
	}
	r.Record.Time, _ = time.Parse(time.RFC3339Nano, r.Time)
	return r.Record, nil
}

// problem is a *FileError for what somebody has to change, and a plain error for what may
// pass (no space, an I/O error).
func problem(path, what string, err error) error {
	for _, theirs := range []error{fs.ErrPermission, fs.ErrNotExist, syscall.EROFS, syscall.ENOTDIR, syscall.EISDIR, syscall.ELOOP,
		syscall.ENAMETOOLONG, syscall.EINVAL, syscall.ENXIO, syscall.EOPNOTSUPP, syscall.ENOLCK, syscall.ENOSYS} {
		if errors.Is(err, theirs) {
			return &FileError{path, what, bare(err)}
		}
	}
	return fmt.Errorf("cannot use %s: %s: %w", path, what, bare(err))
}

// bare takes the path out of an error whose message has it already.
func bare(err error) error {
	if p, ok := errors.AsType[*fs.PathError](err); ok {
		return p.Err
	}
	if l, ok := errors.AsType[*os.LinkError](err); ok {
		return l.Err
	}
	return err
}
