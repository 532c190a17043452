package supervisor

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// The keeper and the guard talk over two pipes in frames: one byte kind, four bytes
// length (little endian), payload. Deadlines are 16 binary bytes, so that the message
// which is sent every few seconds for weeks allocates nothing; the rest is JSON.

type frameKind byte

const (
	frameSetup     frameKind = iota + 1 // setup
	frameDeadlines                      // two int64: term, kill
	frameStart                          // Command
	frameSignal                         // one byte
	frameStop                           // Stop
	frameKill                           // empty
	frameRelease                        // release: how to release the term in the keeper's place
	frameQuit                           // empty: the term is over and released; end
	frameEvent                          // Event, from the guard
)

// maxFrame bounds a frame: ARG_MAX is 2 MiB by default and JSON may double it.
const maxFrame = 16 << 20

// setup is the first frame that a guard gets.
type setup struct {
	KillAfter  time.Duration
	StopSignal syscall.Signal
	Keeper     int  // the keeper's pid, for names
	Pgid       int  // the keeper's process group, which the command joins
	NewGroup   bool // the command stays in the guard's group (in a PID namespace)
}

// release is what a guard needs to release a term.
type release struct {
	Info   []byte     // the lock's affair
	Result *RunResult // what was known when this guard was started in the course of the term
}

var errFrame = errors.New("malformed frame")

func appendFrame(b []byte, kind frameKind, payload []byte) []byte {
	b = append(b, byte(kind))
	b = binary.LittleEndian.AppendUint32(b, uint32(len(payload)))
	return append(b, payload...)
}

func jsonFrame(kind frameKind, v any) []byte {
	payload, err := json.Marshal(v)
	if err != nil {
		panic(fmt.Sprintf("cannot encode frame %d: %v", kind, err)) // only our own plain structs
	}
	return appendFrame(nil, kind, payload)
}

func deadlinesFrame(term, kill Instant) []byte {
	var p [16]byte
	binary.LittleEndian.PutUint64(p[:8], uint64(term))
	binary.LittleEndian.PutUint64(p[8:], uint64(kill))
	return appendFrame(nil, frameDeadlines, p[:])
}

func parseDeadlines(p []byte) (term, kill Instant, err error) {
	if len(p) != 16 {
		return 0, 0, errFrame
	}
	return Instant(binary.LittleEndian.Uint64(p)), Instant(binary.LittleEndian.Uint64(p[8:])), nil
}

// frames cuts a byte stream into frames.
type frames struct{ buf []byte }

func (f *frames) add(b []byte) { f.buf = append(f.buf, b...) }

// next returns the next whole frame; ok is false if more bytes are needed.
// The payload is valid until the next call of add.
func (f *frames) next() (kind frameKind, payload []byte, ok bool, err error) {
	if len(f.buf) < 5 {
		return 0, nil, false, nil
	}
	n := int(binary.LittleEndian.Uint32(f.buf[1:5]))
	if n > maxFrame {
		return 0, nil, false, errFrame
	}
	if len(f.buf) < 5+n {
		return 0, nil, false, nil
	}
	kind, payload = frameKind(f.buf[0]), f.buf[5:5+n:5+n]
	f.buf = f.buf[5+n:]
	return kind, payload, true, nil
}

// commandFrame is NUL-separated: arguments and environment are bytes, and JSON would
// replace what isn't UTF-8 (file names in Latin-1).
func commandFrame(c Command) []byte {
	parts := append([]string{strconv.Itoa(len(c.Args)), strconv.Itoa(int(c.Records)), c.Path}, c.Args...)
	return appendFrame(nil, frameStart, []byte(strings.Join(append(parts, c.Env...), "\x00")))
}

func parseCommand(p []byte) (Command, error) {
	parts := strings.Split(string(p), "\x00")
	n, err := strconv.Atoi(parts[0])
	if err != nil || n < 0 || len(parts) < n+3 {
		return Command{}, errFrame
	}
	records, err := strconv.Atoi(parts[1])
	if err != nil {
		return Command{}, errFrame
	}
	return Command{Path: parts[2], Args: parts[3 : 3+n], Env: parts[3+n:], Records: Records(records)}, nil
}
