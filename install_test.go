//go:build linux

package main_test

import (
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// TestInstall shows that make install needs no network in a tree with a vendor folder (a
// distribution builds like that), and honours DESTDIR and PREFIX.
func TestInstall(t *testing.T) {
	if testing.Short() {
		t.Skip("builds onlyone once more; -short leaves that out")
	}
	t.Parallel()
	tree := t.TempDir()
	files, err := exec.Command("git", "ls-files", "-z").Output()
	if err != nil {
		t.Skipf("git can't list the files of this tree: %v", err)
	}
	for name := range strings.SplitSeq(strings.Trim(string(files), "\x00"), "\x00") {
		copyFile(t, name, filepath.Join(tree, name))
	}
	if out, err := run(tree, "go", "mod", "vendor"); err != nil {
		t.Skipf("the modules can't be had: %v: %s", err, out)
	}
	empty, dest := t.TempDir(), t.TempDir()
	out, err := run(tree, "make", "install", "DESTDIR="+dest, "PREFIX=/opt/onlyone", "VERSION=1.2.3",
		"GO=env GOFLAGS=-mod=vendor GOPROXY=off GOMODCACHE="+empty+" go")
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if e, err := os.ReadDir(empty); err != nil || len(e) > 0 {
		t.Errorf("modules were taken from elsewhere: %v, %v", e, err)
	}
	want := []string{
		"bin/onlyone",
		"share/bash-completion/completions/onlyone",
		"share/fish/vendor_completions.d/onlyone.fish",
		"share/zsh/site-functions/_onlyone",
	}
	pages, _ := filepath.Glob(filepath.Join(tree, "docs/man", "*.[1-9]"))
	for _, page := range pages {
		want = append(want, "share/man/man"+page[len(page)-1:]+"/"+filepath.Base(page))
	}
	slices.Sort(want)
	if got := filesBelow(t, filepath.Join(dest, "opt/onlyone")); !slices.Equal(got, want) {
		t.Errorf("installed:\n%q, want\n%q", got, want)
	}
	if all := filesBelow(t, dest); len(all) != len(want) {
		t.Errorf("installed elsewhere than in PREFIX: %q", all)
	}
	defer func() {
		if out, err := run(tree, "make", "uninstall", "DESTDIR="+dest, "PREFIX=/opt/onlyone"); err != nil {
			t.Errorf("%v: %s", err, out)
		}
		if left := filesBelow(t, dest); len(left) > 0 {
			t.Errorf("left behind: %q", left)
		}
	}()
	version, err := exec.Command(filepath.Join(dest, "opt/onlyone/bin/onlyone"), "version").Output()
	if err != nil || !strings.HasPrefix(string(version), "onlyone 1.2.3 (") {
		t.Errorf("version: %q, %v", version, err)
	}
}

// run runs a command in dir, as if typed there: what make test set for its tests is unset.
func run(dir, name string, args ...string) (string, error) {
	cmd := exec.Command(name, args...)
	cmd.Dir = dir
	for _, kv := range os.Environ() {
		switch name, _, _ := strings.Cut(kv, "="); name {
		case "MAKEFLAGS", "MAKEOVERRIDES", "MFLAGS", "VERSION", "DESTDIR", "PREFIX":
		default:
			cmd.Env = append(cmd.Env, kv)
		}
	}
	out, err := cmd.CombinedOutput()
	return string(out), err
}

func copyFile(t *testing.T, from, to string) {
	t.Helper()
	data, err := os.ReadFile(from)
	if os.IsNotExist(err) {
		return // deleted, and not committed yet
	}
	if err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat(from)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(to, data, info.Mode().Perm()); err != nil {
		t.Fatal(err)
	}
}

func filesBelow(t *testing.T, dir string) []string {
	t.Helper()
	var files []string
	err := fs.WalkDir(os.DirFS(dir), ".", func(path string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			files = append(files, path)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	slices.Sort(files)
	return files
}
