package cli

import (
	"fmt"
	"runtime"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// The real-time signals of Linux as the shell's kill counts them (the C library keeps 32
// and 33 for itself). Other systems of ours can't send them by number.
const (
	sigRTMin = 34
	sigRTMax = 64
)

// parseSignal reads TERM, SIGTERM, term, 15, RTMIN, RTMIN+3, RTMAX-2.
func parseSignal(s string) (syscall.Signal, error) {
	n, ok := signalNumber(strings.TrimPrefix(strings.ToUpper(strings.TrimSpace(s)), "SIG"))
	if !ok {
		return 0, fmt.Errorf("%q is not a signal; use e.g. TERM, INT, QUIT, USR1 or a number", s)
	}
	switch sig := syscall.Signal(n); sig {
	case syscall.SIGSTOP, syscall.SIGTSTP, syscall.SIGTTIN, syscall.SIGTTOU:
		return 0, fmt.Errorf("%q suspends a command, it doesn't end it; use e.g. TERM, INT, QUIT or USR1", s)
	default:
		return sig, nil
	}
}

func signalNumber(s string) (n int, ok bool) {
	realTime := runtime.GOOS == "linux"
	if rest, is := strings.CutPrefix(s, "RTMIN"); is && realTime {
		return realTimeSignal(sigRTMin, rest, '+')
	}
	if rest, is := strings.CutPrefix(s, "RTMAX"); is && realTime {
		return realTimeSignal(sigRTMax, rest, '-')
	}
	if n, err := strconv.ParseUint(s, 10, 8); err == nil {
		valid := unix.SignalName(syscall.Signal(n)) != "" || realTime && n >= sigRTMin && n <= sigRTMax
		return int(n), valid
	}
	n = int(unix.SignalNum("SIG" + s))
	return n, n != 0
}

// realTimeSignal reads the "+3" of RTMIN+3 and the "-2" of RTMAX-2.
func realTimeSignal(base int, offset string, sign byte) (int, bool) {
	if offset == "" {
		return base, true
	}
	n, err := strconv.ParseUint(offset[1:], 10, 8)
	if err != nil || offset[0] != sign || n > sigRTMax-sigRTMin {
		return 0, false
	}
	if sign == '-' {
		return base - int(n), true
	}
	return base + int(n), true
}

// signalName prints a signal as one would type it: TERM, RTMIN+3.
func signalName(sig syscall.Signal) string {
	if name := unix.SignalName(sig); name != "" {
		return strings.TrimPrefix(name, "SIG")
	}
	if sig == sigRTMin {
		return "RTMIN"
	}
	if sig > sigRTMin && sig <= sigRTMax {
		return fmt.Sprintf("RTMIN+%d", sig-sigRTMin)
	}
	return strconv.Itoa(int(sig))
}

// A signalValue is the value of a flag that takes a signal.
type signalValue struct{ sig syscall.Signal }

func (v *signalValue) Set(s string) error {
	sig, err := parseSignal(s)
	if err == nil {
		v.sig = sig
	}
	return err
}

func (v *signalValue) String() string {
	if v == nil || v.sig == 0 {
		return ""
	}
	return signalName(v.sig)
}

// A codeValue is the value of a flag that takes an exit code.
type codeValue struct{ code int }

func (v *codeValue) Set(s string) error {
	n, err := strconv.ParseUint(strings.TrimSpace(s), 10, 8)
	if err != nil {
		return fmt.Errorf("%q is not an exit code; use a number from 0 to 255", s)
	}
	v.code = int(n)
	return nil
}

func (v *codeValue) String() string {
	if v == nil {
		return ""
	}
	return strconv.Itoa(v.code)
}

// A countValue is the value of a flag that takes a number.
type countValue struct{ n, low, high int }

func (v *countValue) Set(s string) error {
	n, err := strconv.Atoi(strings.TrimSpace(s))
	if err != nil || n < v.low || n > v.high {
		return fmt.Errorf("%q is not a number from %d to %d", s, v.low, v.high)
	}
	v.n = n
	return nil
}

func (v *countValue) String() string {
	if v == nil || v.n < v.low {
		return ""
	}
	return strconv.Itoa(v.n)
}

// A choiceValue is the value of a flag that takes one of a few words.
type choiceValue struct {
	word string
	of   []string
}

func (v *choiceValue) Set(s string) error {
	for _, w := range v.of {
		if strings.EqualFold(strings.TrimSpace(s), w) {
			v.word = w
			return nil
		}
	}
	return fmt.Errorf("%q is not one of %s", s, strings.Join(v.of, ", "))
}

func (v *choiceValue) String() string {
	if v == nil {
		return ""
	}
	return v.word
}
