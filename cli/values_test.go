package cli

import (
	"runtime"
	"syscall"
	"testing"
)

func TestParseSignal(t *testing.T) {
	good := map[string]syscall.Signal{
		"TERM": syscall.SIGTERM, "SIGTERM": syscall.SIGTERM, "term": syscall.SIGTERM, "sigterm": syscall.SIGTERM, "15": syscall.SIGTERM,
		"INT": syscall.SIGINT, "2": syscall.SIGINT, "KILL": syscall.SIGKILL, "USR1": syscall.SIGUSR1, " HUP ": syscall.SIGHUP, "WINCH": syscall.SIGWINCH,
	}
	if runtime.GOOS == "linux" {
		for s, n := range map[string]syscall.Signal{"RTMIN": 34, "SIGRTMIN+3": 37, "RTMIN+3": 37, "rtmax-2": 62, "RTMAX": 64, "RTMIN+30": 64, "RTMAX-30": 34, "64": 64, "40": 40} {
			good[s] = n
		}
	}
	for s, want := range good {
		got, err := parseSignal(s)
		if err != nil || got != want {
			t.Errorf("%q: %d, %v, want %d", s, got, err, want)
		}
		if again, err := parseSignal(signalName(got)); err != nil || again != got {
			t.Errorf("%d prints as %q, which is %d (%v)", got, signalName(got), again, err)
		}
	}
	for _, bad := range []string{"", "SIG", "FOO", "0", "-1", "65", "256", "1000", "TERM TERM", "SIGSIGTERM", "RTMIN-1", "RTMIN+31", "RTMIN+", "RTMIN3", "RTMAX+1", "RTMAX-31", "32", "33", "STOP", "TSTP", "19", "1.5", "0x0f"} {
		if sig, err := parseSignal(bad); err == nil {
			t.Errorf("%q is taken as %d", bad, sig)
		}
	}
}

func TestValuesPrintAsTyped(t *testing.T) {
	for _, test := range []struct {
		value interface {
			Set(string) error
			String() string
		}
		in, want string
	}{
		{&codeValue{}, " 7 ", "7"},
		{&codeValue{}, "255", "255"},
		{&signalValue{}, "sigint", "INT"},
		{&choiceValue{of: []string{"human", "json"}}, "JSON", "json"},
	} {
		if err := test.value.Set(test.in); err != nil || test.value.String() != test.want {
			t.Errorf("%q: %q, %v", test.in, test.value, err)
		}
	}
	for _, s := range []string{(*codeValue)(nil).String(), (*signalValue)(nil).String(), (*choiceValue)(nil).String(), (*prefixValue)(nil).String(), (&signalValue{}).String()} {
		if s != "" { // flag.Value: String may be called on a zero value
			t.Errorf("a zero value prints as %q", s)
		}
	}
	for _, bad := range []string{"", "x", "-1", "256", "300", "1.5", "1e2"} {
		if (&codeValue{}).Set(bad) == nil {
			t.Errorf("exit code %q is taken", bad)
		}
	}
}
