package cli

import (
	"bytes"
	"context"
	"net"
	"slices"
	"strings"
	"testing"

	"github.com/urfave/cli/v2"
)

func TestComplete(t *testing.T) {
	var asked []string
	in := &invocation{app: New("test", nil)}
	c := completer{in.build().Commands, func(_ context.Context, f ConsulFlags, prefix string) []string {
		asked = append(asked, strings.Join(append(f.Addresses, f.Token, prefix), " "))
		return []string{"backup", "db/vacuum", "billing"}
	}}
	for _, test := range []struct {
		line string // its last word is the one to complete
		want string // the candidates without descriptions
		asks string // what Consul is asked: addresses, token, prefix
	}{
		{line: "vers", want: "version"},
		{line: "hel", want: "help"},
		{line: "-", want: "--help --version"},
		{line: "__", want: ""},
		{line: "help vers", want: "version"},
		{line: "nonsense ", want: ""},
		{line: "__complete ", want: ""},
		{line: "completion ", want: "bash zsh fish"},
		{line: "completion bash ", want: ""},
		{line: "version ", want: ""},
		{line: "run b", want: "backup billing", asks: " onlyone"},
		{line: "run --prefix a/b/ --token=s --http-addr 127.0.0.1:1,127.0.0.1:2 -nq d", want: "db/vacuum", asks: "127.0.0.1:1 127.0.0.1:2 s a/b"},
		{line: "run -w 5m d", want: "db/vacuum", asks: " onlyone"},
		{line: "run --unknown d", want: "db/vacuum", asks: " onlyone"},
		{line: "run --prefix //:// d", want: "db/vacuum", asks: " onlyone"},
		{line: "run -w ", want: ""},
		{line: "run -nqw ", want: ""},
		{line: "run -s ", want: "TERM INT QUIT HUP USR1 USR2"},
		{line: "run -ns ", want: "TERM INT QUIT HUP USR1 USR2"},
		{line: "run --signal=Q", want: "QUIT"},
		{line: "run --nonsense=Q", want: ""},
		{line: "run --log-format ", want: "human json"},
		{line: "run --token-file ", want: ":file"},
		{line: "run --ca-path=x", want: ":dir"},
		{line: "run --wai", want: "--wait"},
		{line: "run a --wai", want: "--wait"},
		{line: "run a ", want: "--"},
		{line: "run a -- ", want: ""},
		{line: "run -- --wai", want: ""},
	} {
		asked = nil
		var got []string
		for _, line := range c.complete(t.Context(), strings.Split(test.line, " ")) {
			word, _, _ := strings.Cut(line, "\t")
			got = append(got, word)
		}
		if strings.Join(got, " ") != test.want {
			t.Errorf("%q: %q, want %q", test.line, got, test.want)
		}
		if strings.Join(asked, "; ") != test.asks {
			t.Errorf("%q asks Consul %q, want %q", test.line, asked, test.asks)
		}
	}
	c.commands = []*cli.Command{{Name: "many", ArgsUsage: "[NAME...]"}}
	if got := c.complete(t.Context(), []string{"many", "a", "d"}); !slices.Equal(got, []string{"db/vacuum"}) {
		t.Errorf("a second NAME where many may stand: %q", got)
	}
	if got := c.complete(t.Context(), nil); got != nil {
		t.Errorf("no word at all: %q", got)
	}
}

// Each flag and each command that isn't hidden is offered. A later command needs no word
// here: a NAME in its ArgsUsage asks for names of locks.
func TestCompleteOffersAll(t *testing.T) {
	in := &invocation{app: New("test", nil)}
	c := completer{in.build().Commands, nil}
	for _, command := range c.commands {
		offered := c.complete(t.Context(), []string{command.Name})
		if command.Hidden != !slices.Contains(offered, command.Name+"\t"+command.Usage) {
			t.Errorf("%s: hidden %v, offered %q", command.Name, command.Hidden, offered)
		}
		for _, f := range command.Flags {
			flag := dashed(f.Names()[0])
			offered := c.complete(t.Context(), []string{command.Name, flag})
			if !slices.ContainsFunc(offered, func(line string) bool { return strings.HasPrefix(line, flag+"\t") }) {
				t.Errorf("%s %s isn't offered: %q", command.Name, flag, offered)
			}
		}
	}
}

// A Consul that accepts and never answers costs completePatience, and no word.
func TestCompleteWithSilentConsul(t *testing.T) {
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	var stdout, stderr bytes.Buffer
	code := New("test", nil).Main(t.Context(), []string{"onlyone", "__complete", "--", "run", "--http-addr", silent.Addr().String(), ""}, &stdout, &stderr)
	if code != 0 || stdout.Len() > 0 || stderr.Len() > 0 {
		t.Errorf("exit %d, stdout %q, stderr %q", code, &stdout, &stderr)
	}
}
