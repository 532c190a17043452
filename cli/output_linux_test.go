package cli

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// terminal is a new pseudo-terminal: master reads what was written to the other one.
func terminal(t *testing.T, columns uint16) (master, tty *os.File) {
	t.Helper()
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Skipf("no pseudo-terminal here: %v", err)
	}
	t.Cleanup(func() { master.Close() })
	if err := unix.IoctlSetPointerInt(int(master.Fd()), unix.TIOCSPTLCK, 0); err != nil {
		t.Fatal(err)
	}
	n, err := unix.IoctlGetInt(int(master.Fd()), unix.TIOCGPTN)
	if err != nil {
		t.Fatal(err)
	}
	tty, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { tty.Close() })
	if err := unix.IoctlSetWinsize(int(tty.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Row: 24, Col: columns}); err != nil {
		t.Fatal(err)
	}
	return master, tty
}

// read takes what has been written to the terminal so far, up to end.
func read(t *testing.T, master *os.File, end string) string {
	t.Helper()
	var got bytes.Buffer
	buf := make([]byte, 4096)
	for !strings.HasSuffix(got.String(), end) {
		n, err := master.Read(buf)
		if err != nil {
			t.Fatalf("%v after %q", err, got.String())
		}
		got.Write(buf[:n])
	}
	return strings.ReplaceAll(got.String(), "\r\n", "\n")
}

// backgroundEnv makes this binary say whether it is in its terminal's background, and a child of
// another process group, too.
const backgroundEnv = "TEST_BACKGROUND" // TestMain takes ONLYONE_* away

func TestInBackground(t *testing.T) {
	if role := os.Getenv(backgroundEnv); role != "" {
		fmt.Printf("%s %v\n", role, inBackground(os.Stderr))
		if role == "leader" {
			child := exec.Command("/proc/self/exe", "-test.run=^TestInBackground$")
			child.Env = append(os.Environ(), backgroundEnv+"=job")
			child.Stdout, child.Stderr = os.Stdout, os.Stderr
			child.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
			_ = child.Run()
		}
		os.Exit(0)
	}
	_, tty := terminal(t, 80)
	if inBackground(tty) {
		t.Error("in the background of a terminal that isn't ours")
	}
	leader := exec.Command("/proc/self/exe", "-test.run=^TestInBackground$")
	leader.Env = append(os.Environ(), backgroundEnv+"=leader")
	leader.Stdin, leader.Stderr = tty, tty
	leader.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	out, err := leader.Output()
	if got, want := string(out), "leader false\njob true\n"; err != nil || got != want {
		t.Errorf("%q, %v; want %q", got, err, want)
	}
}

func TestTerminal(t *testing.T) {
	t.Setenv("TERM", "xterm")
	t.Run("status line, colours and width", func(t *testing.T) {
		master, tty := terminal(t, 30)
		log, status := newOutput(outputConfig{stderr: tty}, "a")
		if !status.Active() {
			t.Fatal("a terminal has no status line")
		}
		status.Set("a: waiting 4m10s, 2nd of 3, held by web-2 since 12m")
		log.Debug().Msg("not seen")
		log.Info().Msg("info")
		log.Warn().Msg("warn")
		status.Clear()
		log.Error().Msg("end")
		got := screen(strings.NewReplacer("\x1b[33m", "", "\x1b[31m", "", "\x1b[0m", "").Replace(read(t, master, "end\r\n")))
		if want := []string{"onlyone: a: info", "onlyone: a: warn", "onlyone: a: end", ""}; strings.Join(got, "\n") != strings.Join(want, "\n") {
			t.Errorf("%q, want %q", got, want)
		}
		status.Set("a: waiting 4m10s, 2nd of 3, held by web-2 since 12m")
		if got := read(t, master, clearToEnd); got != "\ronlyone: a: waiting 4m10s, 2…"+clearToEnd {
			t.Errorf("%q doesn't fit into 30 columns", got)
		}
	})
	t.Run("NO_COLOR", func(t *testing.T) {
		t.Setenv("NO_COLOR", "1")
		master, tty := terminal(t, 80)
		log, _ := newOutput(outputConfig{stderr: tty}, "a")
		log.Error().Msg("end")
		if got := read(t, master, "end\r\n"); got != "onlyone: a: end\n" {
			t.Errorf("%q", got)
		}
	})
	for name, prepare := range map[string]func(*testing.T) outputConfig{
		"TERM=dumb": func(t *testing.T) outputConfig { t.Setenv("TERM", "dumb"); return outputConfig{} },
		"-q":        func(*testing.T) outputConfig { return outputConfig{quiet: true} },
		"JSON":      func(*testing.T) outputConfig { return outputConfig{json: true} },
	} {
		t.Run(name+" has no status line", func(t *testing.T) {
			c := prepare(t)
			_, tty := terminal(t, 80)
			c.stderr = tty
			if _, status := newOutput(c, "a"); status.Active() {
				t.Error("there is one")
			}
		})
	}
	t.Run("a terminal without a width", func(t *testing.T) {
		_, tty := terminal(t, 0)
		if got := terminalWidth(tty); got != 80 {
			t.Errorf("%d columns", got)
		}
	})
}
