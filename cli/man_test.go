package cli

import (
	"errors"
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/urfave/cli/v2"
)

// The man pages in docs/man are written by hand, but for the flags: what stands between
// flagsBegin and flagsEnd is made from the code, and only what follows a line `more` in it,
// up to the next flag, is kept. A new command gets a page to begin with.
var update = flag.Bool("update", false, "write the flags into the pages in docs/man")

const (
	manDir     = "../docs/man"
	flagsBegin = `.\" The flags come from the code: go test ./cli -run TestManPages -update`
	flagsEnd   = `.\" End of the flags.`
	more       = `.\" more`
)

// manCommands are the commands that have a page.
func manCommands(t *testing.T) []*cli.Command {
	t.Helper()
	// The variable of a flag is in its list only if it is set.
	build := func() []*cli.Command { return (&invocation{app: New("", nil)}).build().Commands }
	for _, c := range build() {
		for _, f := range c.Flags {
			t.Setenv("ONLYONE_"+strings.ToUpper(strings.ReplaceAll(f.Names()[0], "-", "_")), "1")
		}
	}
	t.Setenv("FENCE_TOKEN", "1")
	return slices.DeleteFunc(build(), func(c *cli.Command) bool { return c.Hidden })
}

// sharedPages are the commands that are on another one's page. Theirs refers to it.
func sharedPages() map[string]string {
	return map[string]string{"resume": "pause", "undrain": "drain"}
}

// manPage is the page that a command is on: some share one.
func manPage(command string) string {
	if first, ok := sharedPages()[command]; ok {
		command = first
	}
	if command == "version" {
		return "onlyone.1"
	}
	return "onlyone-" + command + ".1"
}

func readPage(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(manDir, name))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// TestManPages: every command has a page, and every page has the flags as they are.
func TestManPages(t *testing.T) {
	byPage := map[string][]*cli.Command{}
	for _, c := range manCommands(t) {
		byPage[manPage(c.Name)] = append(byPage[manPage(c.Name)], c)
	}
	for name, commands := range byPage {
		path := filepath.Join(manDir, name)
		text, err := os.ReadFile(path)
		if errors.Is(err, fs.ErrNotExist) && *update {
			text = []byte(newPage(commands[0]))
		} else if err != nil {
			t.Errorf("%v; go test ./cli -run TestManPages -update makes one to begin with", err)
			continue
		}
		before, rest, ok1 := strings.Cut(string(text), flagsBegin+"\n")
		old, after, ok2 := strings.Cut(rest, flagsEnd+"\n")
		if !ok1 || !ok2 {
			t.Errorf("%s has no lines for the flags:\n%s\n%s", name, flagsBegin, flagsEnd)
			continue
		}
		now := before + flagsBegin + "\n" + manFlags(commands, old) + flagsEnd + "\n" + after
		if *update {
			if err := os.WriteFile(path, []byte(now), 0o644); err != nil {
				t.Fatal(err)
			}
		} else if now != string(text) {
			t.Errorf("%s doesn't have the flags as they are: go test ./cli -run TestManPages -update", name)
		}
		for _, c := range commands {
			if description := strings.TrimSuffix(c.Usage, "?"); c == commands[0] && c.Name != "version" && !strings.Contains(now, "\n.Nd "+description+"\n") {
				t.Errorf("%s doesn't say what %s is there for (.Nd): %s", name, c.Name, description)
			}
		}
	}
}

func newPage(c *cli.Command) string {
	title := "onlyone-" + c.Name
	return fmt.Sprintf(".Dd November 29, 2026\n.Dt %s 1\n.Os\n.Sh NAME\n.Nm %s\n.Nd %s\n.Sh SYNOPSIS\n.Nm onlyone %s\n%s.Sh DESCRIPTION\n.Bd -literal\n%s\n.Ed\n.Sh FLAGS\n%s\n%s\n.Sh SEE ALSO\n.Xr onlyone 1 ,\n.Xr onlyone-exit 7\n",
		strings.ToUpper(title), title, c.Usage, c.Name, roff(c.ArgsUsage), roff(c.Description), flagsBegin, flagsEnd)
}

// manFlags are the flags of the commands of a page. What was said by hand of a flag in old
// stays below it.
func manFlags(commands []*cli.Command, old string) string {
	kept := map[string]string{}
	for entry := range strings.SplitSeq(old, "\n.It ") {
		head, _, _ := strings.Cut(entry, "\n")
		_, said, _ := strings.Cut(entry, "\n"+more+"\n")
		said, _, _ = strings.Cut(said+"\n", ".El\n")
		kept[flagName(head)] = strings.TrimRight(said, "\n")
	}
	var b strings.Builder
	for _, c := range commands {
		if len(commands) > 1 {
			fmt.Fprintf(&b, ".Ss onlyone %s\n", c.Name)
		}
		var categories []string
		lists := map[string][]cli.DocGenerationFlag{}
		for _, f := range c.Flags {
			category := f.(cli.CategorizableFlag).GetCategory()
			if category == forConsul && c.Name != "run" || category != forUnit && c.Name == "systemd" {
				continue // on onlyone-run's page
			}
			if !slices.Contains(categories, category) {
				categories = append(categories, category)
			}
			lists[category] = append(lists[category], f.(cli.DocGenerationFlag))
		}
		for _, category := range categories {
			if len(categories) > 1 && category != "" && len(commands) == 1 {
				fmt.Fprintf(&b, ".Ss %s\n", roff(category)[:len(roff(category))-1])
			}
			b.WriteString(".Bl -tag -width Ds\n")
			for _, f := range lists[category] {
				entry, said := manFlag(f), kept["--"+f.Names()[0]]
				if said != "" { // a sentence of its own
					said += "\n"
					entry = strings.TrimRight(entry, "\n")
					if at := strings.LastIndex(entry, "\n"); strings.HasPrefix(entry[at+1:], ".") {
						entry += " ."
					} else {
						entry += "."
					}
					entry += "\n"
				}
				b.WriteString(entry + more + "\n" + said)
			}
			b.WriteString(".El\n")
		}
		if c.Name == "systemd" {
			b.WriteString(".Pp\nAnd those of\n.Xr onlyone-run 1 .\n")
		} else if c.Name != "run" && slices.ContainsFunc(c.Flags, func(f cli.Flag) bool { return f.(cli.CategorizableFlag).GetCategory() == forConsul }) {
			b.WriteString(".Pp\nConsul is found as by\n.Xr onlyone-run 1 :\nby the flags and the\n.Ev CONSUL_*\nvariables of\n.Xr consul 1 .\n")
		}
	}
	return b.String()
}

// flagName is the --name in the line of an entry.
func flagName(head string) string {
	_, name, _ := strings.Cut(head, "Fl Fl ")
	name, _, _ = strings.Cut(name, " ")
	return "--" + name
}

func manFlag(f cli.DocGenerationFlag) string {
	head := "Fl Fl " + f.Names()[0]
	for _, short := range f.Names()[1:] {
		head = "Fl " + short + " , " + head
	}
	if f.TakesValue() {
		head += " Ar " + placeholder(f)
	}
	text := ".It " + head + "\n"
	usage := f.GetUsage()
	for _, v := range f.GetEnvVars() {
		usage = strings.TrimSuffix(usage, " ("+v+")") // it comes below
	}
	usage = strings.ToUpper(usage[:1]) + usage[1:]
	before, rest, _ := strings.Cut(usage, "`")
	text += roff(before)
	if word, after, ok := strings.Cut(rest, "`"); ok {
		text += ".Ar " + word
		if n := len(after) - len(strings.TrimLeft(after, ".,:;)")); n > 0 {
			text += " " + strings.Join(strings.Split(after[:n], ""), " ")
			after = after[n:]
		}
		text += "\n" + roff(strings.TrimSpace(after))
	}
	if variables := f.GetEnvVars(); len(variables) > 0 {
		text += ".Pq Ev " + strings.Join(variables, " , ") + "\n"
	}
	return text
}

// roff is text as a line of a page.
func roff(s string) string {
	if s = strings.TrimSpace(s); s == "" {
		return ""
	}
	s = strings.ReplaceAll(s, `\`, `\e`)
	s = regexp.MustCompile(`(^|[ (/])-`).ReplaceAllString(s, `$1\-`)
	s = strings.ReplaceAll(s, `\--`, `\-\-`)
	if s[0] == '.' || s[0] == '\'' {
		s = `\&` + s
	}
	return s + "\n"
}

// allPages are the names of the pages, but for those that only refer to another one.
func allPages(t *testing.T) (names []string) {
	t.Helper()
	paths, err := filepath.Glob(filepath.Join(manDir, "*.[1-9]"))
	if err != nil || len(paths) == 0 {
		t.Fatalf("no pages in %s: %v", manDir, err)
	}
	for _, p := range paths {
		name := filepath.Base(p)
		if _, ok := sharedPages()[strings.TrimSuffix(strings.TrimPrefix(name, "onlyone-"), ".1")]; !ok {
			names = append(names, name)
		}
	}
	return names
}

// TestManShared: man finds a command that is on another one's page.
func TestManShared(t *testing.T) {
	for command, first := range sharedPages() {
		if got, want := readPage(t, "onlyone-"+command+".1"), ".so man1/onlyone-"+first+".1\n"; got != want {
			t.Errorf("onlyone-%s.1 has %q, want %q", command, got, want)
		}
	}
}

// TestManNames: no page is left of a command that isn't there any more, each is called as it
// says, and what it refers to of ours exists. All of them are in onlyone(1).
func TestManNames(t *testing.T) {
	pages := allPages(t)
	var want []string
	for _, c := range manCommands(t) {
		want = append(want, manPage(c.Name))
	}
	want = append(want, "onlyone-exit.7", "onlyone-guarantees.7", "onlyone-keys.7")
	overview := readPage(t, "onlyone.1")
	for _, page := range pages {
		if !slices.Contains(want, page) {
			t.Errorf("%s is of no command", page)
		}
		name, section, _ := strings.Cut(page, ".")
		text := readPage(t, page)
		if !strings.Contains(text, fmt.Sprintf("\n.Dt %s %s\n", strings.ToUpper(name), section)) || !regexp.MustCompile(`\n\.Nm `+name+`( ,)?\n`).MatchString(text) {
			t.Errorf("%s doesn't call itself %s(%s)", page, name, section)
		}
		if page != "onlyone.1" && !strings.Contains(overview, fmt.Sprintf("Xr %s %s", name, section)) {
			t.Errorf("onlyone.1 doesn't refer to %s(%s)", name, section)
		}
		for _, m := range regexp.MustCompile(`Xr (onlyone\S*) (\d)`).FindAllStringSubmatch(text, -1) {
			if !slices.Contains(pages, m[1]+"."+m[2]) {
				t.Errorf("%s refers to %s(%s), which doesn't exist", page, m[1], m[2])
			}
		}
	}
}

// items are the words of a list's entries (.It Li WORD, .It Ev WORD, .It Pa WORD) in a
// section of a page.
func items(t *testing.T, page, section string) (words []string) {
	t.Helper()
	_, text, ok := strings.Cut(readPage(t, page), "\n.Sh "+section+"\n")
	if !ok {
		t.Fatalf("%s has no section %s", page, section)
	}
	text, _, _ = strings.Cut(text, "\n.Sh ")
	for _, m := range regexp.MustCompile(`(?m)^\.It (?:Li|Ev|Pa) (.*)$`).FindAllStringSubmatch(text, -1) {
		for _, w := range strings.Split(m[1], " , ") {
			words = append(words, strings.TrimPrefix(w, `\&`))
		}
	}
	return words
}

func sameWords(t *testing.T, what string, got, want []string) {
	t.Helper()
	for _, w := range want {
		if !slices.Contains(got, w) {
			t.Errorf("%s lacks %s", what, w)
		}
	}
	for _, w := range got {
		if !slices.Contains(want, w) {
			t.Errorf("%s has %s, which the code doesn't know", what, w)
		}
	}
}

// TestManExitCodes: onlyone-exit(7) has each code of exit.go.
func TestManExitCodes(t *testing.T) {
	file, err := parser.ParseFile(token.NewFileSet(), "exit.go", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	var want []string
	ast.Inspect(file, func(n ast.Node) bool {
		if v, ok := n.(*ast.ValueSpec); ok && strings.HasPrefix(v.Names[0].Name, "exit") && len(v.Values) == 1 {
			want = append(want, v.Values[0].(*ast.BasicLit).Value)
		}
		return true
	})
	if len(want) < 10 {
		t.Fatalf("found only %q in exit.go", want)
	}
	sameWords(t, "onlyone-exit.7", items(t, "onlyone-exit.7", "CODES"), want)
}

// ours are strings of the code that match a pattern with one group.
func ours(t *testing.T, pattern string, globs ...string) (words []string) {
	t.Helper()
	for _, glob := range globs {
		paths, _ := filepath.Glob(glob)
		for _, path := range paths {
			if strings.HasSuffix(path, "_test.go") {
				continue
			}
			text, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			for _, m := range regexp.MustCompile(pattern).FindAllStringSubmatch(string(text), -1) {
				if !slices.Contains(words, m[1]) {
					words = append(words, m[1])
				}
			}
		}
	}
	if len(words) == 0 {
		t.Fatalf("nothing in %q matches %s", globs, pattern)
	}
	return words
}

// TestManEnvironment: onlyone-run(1) has each variable that the command and the hooks get.
func TestManEnvironment(t *testing.T) {
	want := ours(t, `"([A-Z][A-Z_]+)=`, "../consulsession/term.go", "adapter.go", "../supervisor/running.go")
	sameWords(t, "onlyone-run.1", items(t, "onlyone-run.1", "ENVIRONMENT OF CMD"), want)
}

// TestManKeys: onlyone-keys(7) has each key that the code makes.
func TestManKeys(t *testing.T) {
	want := ours(t, `"((?:\.(?:lock|holder|runs|period|paused|step-down|lock-bell|copies)|~[a-z]+/))"`, "../consulsession/*.go")
	// The comment in view.go is the list; a key that only it has, or only the code, is a slip.
	listed := ours(t, `(?m)^//\t(?:NAME/)?([.~][a-z-]+/?)`, "../consulsession/view.go")
	listed = append(listed, ours(t, `(?m)^//\t\S+, ([.~][a-z-]+)`, "../consulsession/view.go")...)
	listed = append(listed, "~doctor/")
	sameWords(t, "the comment in view.go", listed, want)
	var got []string
	for _, w := range items(t, "onlyone-keys.7", "KEYS") {
		got = append(got, regexp.MustCompile(`/[A-Z]+$`).ReplaceAllString(w, "/"))
	}
	sameWords(t, "onlyone-keys.7", got, want)
}

// TestManExamples: each command line of onlyone in the pages is one that it takes.
func TestManExamples(t *testing.T) {
	app := (&invocation{app: New("", nil)}).build()
	seen := 0
	for _, page := range allPages(t) {
		for _, block := range regexp.MustCompile(`(?s)\n\.Bd -literal[^\n]*\n(.*?)\n\.Ed`).FindAllStringSubmatch(readPage(t, page), -1) {
			for line := range strings.Lines(block[1]) {
				_, line, ok := strings.Cut(" "+strings.TrimSpace(line), " onlyone ")
				if !ok {
					continue
				}
				seen++
				line = strings.NewReplacer(`\-`, "-", `\e`, `\`, `\&`, "").Replace(line)
				args := strings.Fields(regexp.MustCompile(`(['"]).*?(['"])`).ReplaceAllStringFunc(line, func(s string) string {
					return strings.ReplaceAll(s[1:len(s)-1], " ", "_")
				}))
				args, _, dashes := cut(args)
				if i := slices.IndexFunc(args, func(a string) bool { return slices.Contains([]string{"|", "||", "&&", ">", ")"}, a) }); i > 0 {
					args = args[:i]
				}
				in := &invocation{app: New("", nil), dashes: dashes}
				if _, err := in.arrange(app, args); err != nil {
					t.Errorf("%s: onlyone %s: %v", page, line, err)
				}
			}
		}
	}
	if seen < 30 {
		t.Errorf("only %d examples found", seen)
	}
}

// TestManLint: mandoc has nothing to say, but that it can't find other programs' pages.
func TestManLint(t *testing.T) {
	if _, err := exec.LookPath("mandoc"); err != nil {
		t.Skip("mandoc is missing (Debian's mandoc)")
	}
	for _, page := range allPages(t) {
		out, _ := exec.Command("mandoc", "-T", "lint", filepath.Join(manDir, page)).CombinedOutput()
		for line := range strings.Lines(string(out)) {
			if !strings.Contains(line, "referenced manual not found: Xr ") && !strings.Contains(line, "outdated mandoc.db lacks ") {
				t.Error(strings.TrimSpace(line))
			}
		}
		text := readPage(t, page)
		for i, line := range strings.Split(text, "\n") {
			if strings.ContainsRune(line, '\t') || strings.ContainsFunc(line, func(r rune) bool { return r > 126 }) {
				t.Errorf("%s:%d: a tab, or what isn't ASCII: %s", page, i+1, line)
			}
		}
	}
}
