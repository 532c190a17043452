// Package internal holds what only tests and measurements need; see ARCHITECTURE.md.
package internal

import (
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

const module = "github.com/a-seed-0bc5ead7/onlyone"

// TestArrows holds the arrows that ARCHITECTURE.md draws: the packages of the program
// import each other as drawn there and not otherwise, and nothing of internal/. Test files
// may import what they like. All files count, whatever system they are for.
func TestArrows(t *testing.T) {
	drawn, real := drawnArrows(t), realArrows(t)
	for _, pkg := range slices.Sorted(maps.Keys(real)) {
		want, ok := drawn[pkg]
		if !ok {
			t.Errorf("package %s isn't drawn: add a line %q to the arrows in ARCHITECTURE.md", pkg, pkg+" -> "+strings.Join(real[pkg], " "))
			continue
		}
		for _, to := range real[pkg] {
			if !slices.Contains(want, to) {
				t.Errorf("%s imports %s, but ARCHITECTURE.md has no arrow %s -> %s", pkg, to, pkg, to)
			}
		}
		for _, to := range want {
			if !slices.Contains(real[pkg], to) {
				t.Errorf("ARCHITECTURE.md has an arrow %s -> %s, but %s doesn't import %s", pkg, to, pkg, to)
			}
		}
	}
	for pkg := range drawn {
		if _, ok := real[pkg]; !ok {
			t.Errorf("ARCHITECTURE.md draws package %s, which doesn't exist", pkg)
		}
	}
}

// drawnArrows reads the lines "PACKAGE -> PACKAGE..." between the fences of the block
// "```arrows" in ARCHITECTURE.md.
func drawnArrows(t *testing.T) map[string][]string {
	page, err := os.ReadFile("../ARCHITECTURE.md")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, found := strings.Cut(string(page), "\n```arrows\n")
	block, _, closed := strings.Cut(rest, "\n```\n")
	if !found || !closed {
		t.Fatal("ARCHITECTURE.md has no block ```arrows")
	}
	arrows := map[string][]string{}
	for line := range strings.Lines(block) {
		from, to, ok := strings.Cut(line, "->")
		if !ok {
			t.Fatalf("the line %q of the arrows isn't PACKAGE -> PACKAGE...", line)
		}
		arrows[strings.TrimSpace(from)] = strings.Fields(to)
	}
	return arrows
}

// realArrows reads the imports of the program's packages by each other. Package main is
// called main, the others by their folder.
func realArrows(t *testing.T) map[string][]string {
	arrows := map[string][]string{}
	root := os.DirFS("..")
	err := fs.WalkDir(root, ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			base := d.Name()
			_, err := fs.Stat(root, path.Join(name, "go.mod"))
			if name != "." && (base == "internal" || base == "testdata" || base[0] == '.' || base[0] == '_' || err == nil) {
				return fs.SkipDir
			}
			return nil
		}
		if path.Ext(name) != ".go" || strings.HasSuffix(name, "_test.go") {
			return nil
		}
		f, err := parser.ParseFile(token.NewFileSet(), filepath.Join("..", name), nil, parser.ImportsOnly)
		if err != nil {
			return err
		}
		pkg := path.Dir(name)
		if pkg == "." {
			pkg = "main"
		}
		for _, spec := range f.Imports {
			imported, err := strconv.Unquote(spec.Path.Value)
			if err != nil {
				return err
			}
			if to, ours := strings.CutPrefix(imported, module+"/"); ours {
				arrows[pkg] = append(arrows[pkg], to)
			}
		}
		slices.Sort(arrows[pkg])
		arrows[pkg] = slices.Compact(arrows[pkg])
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return arrows
}

// TestPagesNameWhatExists: the tests, files and folders that the pages for developers name
// are there, and what is said to be "`a`, `b` in `FILE`" is defined in that file.
func TestPagesNameWhatExists(t *testing.T) {
	defined := map[string]bool{}
	root := os.DirFS("..")
	err := fs.WalkDir(root, ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(name, "_test.go") {
			return err
		}
		text, err := fs.ReadFile(root, name)
		for _, m := range regexp.MustCompile(`(?m)^func ((?:Test|Fuzz|Benchmark)\w+)\(`).FindAllSubmatch(text, -1) {
			defined[string(m[1])] = true
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, page := range []string{"ARCHITECTURE.md", "CONTRIBUTING.md"} {
		text, err := fs.ReadFile(root, page)
		if err != nil {
			t.Error(err)
			continue
		}
		for _, name := range regexp.MustCompile(`\b(?:Test|Fuzz|Benchmark)[A-Z]\w+`).FindAllString(string(text), -1) {
			if !defined[name] {
				t.Errorf("%s names %s, which doesn't exist", page, name)
			}
		}
		for _, m := range regexp.MustCompile("`((?:cli|supervisor|consulsession|period|signals|systemd|internal|scripts|testdata|packaging)/[^`]*|[a-z_]+\\.go)`").FindAllStringSubmatch(string(text), -1) {
			file, _, _ := strings.Cut(m[1], " ") // what follows are arguments
			if _, err := fs.Stat(root, strings.TrimSuffix(file, "/")); err != nil {
				t.Errorf("%s names %s, which doesn't exist", page, file)
			}
		}
		for _, m := range regexp.MustCompile("((?:`[A-Za-z]+`(?:, | and )?)+) in `([a-z_/]+\\.go)`").FindAllStringSubmatch(string(text), -1) {
			source, err := fs.ReadFile(root, m[2])
			if err != nil {
				t.Errorf("%s names %s: %v", page, m[2], err)
				continue
			}
			for _, n := range regexp.MustCompile("[A-Za-z]+").FindAllString(strings.ReplaceAll(m[1], "` and `", "` `"), -1) {
				// A function, a method, a type, a variable, a constant, or a command.
				if !regexp.MustCompile(`(?m)^func (\([^)]*\) )?` + n + `[(\[]|^type ` + n + ` |^(var |const |\t)?` + n + ` += |Name: +"` + n + `"`).Match(source) {
					t.Errorf("%s has %s in %s, where it isn't defined", page, n, m[2])
				}
			}
		}
	}
}
