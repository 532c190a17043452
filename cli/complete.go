package cli

import (
	"context"
	_ "embed"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/a-seed-0bc5ead7/onlyone/consulsession"
)

// Completion: the script of each shell hands the words up to the cursor to the hidden
// command "onlyone __complete -- WORD...", and shows what that prints, one candidate a line:
// WORD, a tab and a description. A line ":file" or ":dir" asks for names of files. For
// --flag=VALUE the candidates are values. What follows the command line's own "--" is the
// guarded command's affair, which the scripts leave to its own completion.

//go:embed completions/onlyone.bash
var bashCompletion string

//go:embed completions/_onlyone
var zshCompletion string

//go:embed completions/onlyone.fish
var fishCompletion string

// completePatience is how long names of locks may take: who has pressed Tab waits for it.
const completePatience = 300 * time.Millisecond

func (in *invocation) completionCommand() *cli.Command {
	return &cli.Command{
		Name:      "completion",
		Usage:     "print a shell's completion script",
		ArgsUsage: "bash|zsh|fish",
		Description: `onlyone completion bash|zsh|fish

  source <(onlyone completion bash)      in ~/.bashrc; the same for zsh
  onlyone completion fish | source       in config.fish

Completes commands, flags, their values, and names of locks from Consul.
`,
		Action: func(c *cli.Context) error {
			if in.dashes || c.NArg() != 1 {
				return usageError("try: onlyone completion bash", "want one shell: bash, zsh or fish")
			}
			script, ok := map[string]string{"bash": bashCompletion, "zsh": zshCompletion, "fish": fishCompletion}[c.Args().First()]
			if !ok {
				return usageError("there are: bash, zsh, fish", "no completion for the shell %q", c.Args().First())
			}
			_, err := io.WriteString(in.stdout, script)
			return err
		},
	}
}

func (in *invocation) completeCommand() *cli.Command {
	return &cli.Command{
		Name:   "__complete",
		Hidden: true,
		Action: func(c *cli.Context) error {
			for _, line := range (completer{c.App.Commands, lockNames}).complete(c.Context, in.command) {
				if _, err := fmt.Fprintln(in.stdout, line); err != nil {
					return err
				}
			}
			return nil
		},
	}
}

// lockNames lists the locks below prefix, or nothing if that takes long or fails.
func lockNames(ctx context.Context, f ConsulFlags, prefix string) []string {
	ctx, cancel := context.WithTimeout(ctx, completePatience)
	defer cancel()
	names, err := consulsession.Names(ctx, f.client(), prefix)
	if err != nil {
		return nil
	}
	return names
}

// completer finds what may stand at the end of a command line.
type completer struct {
	commands  []*cli.Command
	lockNames func(ctx context.Context, f ConsulFlags, prefix string) []string
}

// complete returns the candidates for the last word.
func (c completer) complete(ctx context.Context, words []string) []string {
	if len(words) == 0 {
		return nil
	}
	words, current := words[:len(words)-1], words[len(words)-1]
	if slices.Contains(words, "--") {
		return nil
	}
	isCommand := func(w string) bool { return !strings.HasPrefix(w, "-") } // no global flag takes a value
	i := slices.IndexFunc(words, isCommand)
	switch {
	case i < 0 && strings.HasPrefix(current, "-"):
		return startingWith(current, []string{"--help\tprint the help", "--version\tprint the version"})
	case i < 0:
		return startingWith(current, append(c.commandLines(), "help\tprint the help"))
	case words[i] == "help":
		return startingWith(current, c.commandLines())
	}
	for _, command := range c.commands {
		if command.HasName(words[i]) && !command.Hidden {
			return c.argument(ctx, command, words[i+1:], current)
		}
	}
	return nil
}

func (c completer) commandLines() []string {
	var lines []string
	for _, command := range c.commands {
		if !command.Hidden {
			lines = append(lines, command.Name+"\t"+command.Usage)
		}
	}
	return lines
}

// argument returns the candidates for current, after a command and what follows it.
func (c completer) argument(ctx context.Context, command *cli.Command, words []string, current string) []string {
	set := newFlagSet(command.Flags)
	typed := set.typed(words)
	hasDashes := strings.Contains(command.ArgsUsage, "--")
	if typed.pending != nil {
		return flagValues(typed.pending, current)
	}
	if flag, value, ok := strings.Cut(current, "="); ok && strings.HasPrefix(flag, "-") {
		if f := set[strings.TrimLeft(flag, "-")]; f != nil {
			return flagValues(f, value)
		}
		return nil
	}
	if strings.HasPrefix(current, "-") {
		lines := flagLines(command)
		if hasDashes {
			lines = append(lines, "--\tthe command follows")
		}
		return startingWith(current, lines)
	}
	switch {
	case len(typed.positionals) > 0 && hasDashes && current == "":
		return []string{"--\tthe command follows"}
	case len(typed.positionals) > 0 && !strings.Contains(command.ArgsUsage, "NAME..."):
		return nil
	case strings.Contains(command.ArgsUsage, "|"):
		return startingWith(current, strings.Split(command.ArgsUsage, "|"))
	case strings.Contains(command.ArgsUsage, "NAME"):
		return startingWith(current, c.lockNames(ctx, typed.consulFlags(), typed.prefix()))
	}
	return nil
}

func startingWith(current string, lines []string) []string {
	return slices.DeleteFunc(lines, func(line string) bool { return !strings.HasPrefix(line, current) })
}

// flagLines are a command's flags by their long names.
func flagLines(command *cli.Command) []string {
	var lines []string
	for _, f := range append(slices.Clone(command.Flags), cli.HelpFlag) {
		if d, ok := f.(cli.DocGenerationFlag); ok {
			lines = append(lines, dashed(d.Names()[0])+"\t"+strings.ReplaceAll(d.GetUsage(), "`", ""))
		}
	}
	return lines
}

// flagValues are the values of a flag, if they can be told.
func flagValues(f cli.DocGenerationFlag, current string) []string {
	if g, ok := f.(*cli.GenericFlag); ok {
		switch v := g.Value.(type) {
		case *choiceValue:
			return startingWith(current, slices.Clone(v.of))
		case *signalValue:
			return startingWith(current, []string{"TERM", "INT", "QUIT", "HUP", "USR1", "USR2"})
		}
	}
	switch placeholder(f) {
	case "FILE":
		return []string{":file"}
	case "DIR":
		return []string{":dir"}
	}
	return nil
}

// partialLine is what stands before the cursor, as far as it can be understood.
type partialLine struct {
	values      map[string][]string // of the flags, by their long names
	positionals []string
	pending     cli.DocGenerationFlag // its value comes next
}

func (set flagSet) typed(words []string) partialLine {
	p := partialLine{values: map[string][]string{}}
	for len(words) > 0 {
		if len(words[0]) < 2 || words[0][0] != '-' {
			p.positionals, words = append(p.positionals, words[0]), words[1:]
			continue
		}
		uses, rest, err := set.resolve(words[0], words[1:])
		if err != nil && len(words) == 1 {
			if uses, _, err := set.resolve(words[0], []string{""}); err == nil {
				p.pending = uses[len(uses)-1].flag
			}
			return p
		}
		if err != nil { // an unknown flag: go on after it
			rest = words[1:]
		}
		for _, u := range uses {
			long := u.flag.Names()[0]
			p.values[long] = append(p.values[long], u.value)
		}
		words = rest
	}
	return p
}

func (p partialLine) last(flag string) string {
	if v := p.values[flag]; len(v) > 0 {
		return v[len(v)-1]
	}
	return ""
}

func (p partialLine) consulFlags() ConsulFlags {
	return ConsulFlags{
		Addresses: strings.FieldsFunc(strings.Join(p.values["http-addr"], ","), func(r rune) bool { return r == ',' }),
		Token:     p.last("token"), TokenFile: p.last("token-file"),
		CAFile: p.last("ca-file"), CAPath: p.last("ca-path"),
		ClientCert: p.last("client-cert"), ClientKey: p.last("client-key"),
		ServerName: p.last("tls-server-name"), Datacenter: p.last("datacenter"),
		Namespace: p.last("namespace"), Partition: p.last("partition"),
	}
}

// prefix is what --prefix or its variable says.
func (p partialLine) prefix() string {
	v := prefixValue{defaultPrefix}
	said := p.last("prefix")
	if names := variable("prefix"); said == "" && names != nil {
		said = os.Getenv(names[0])
	}
	if said != "" {
		_ = v.Set(said) // a wrong one leaves the default
	}
	return v.prefix
}
