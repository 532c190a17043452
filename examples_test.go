//go:build linux

package main_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	yaml "go.yaml.in/yaml/v2"

	"github.com/a-seed-0bc5ead7/onlyone/internal/consultest"
)

const examples = "packaging/examples/"

// TestExamples reads the examples in packaging/examples with their own tools, where these are
// there, and runs their command lines of onlyone against a real Consul.
func TestExamples(t *testing.T) {
	t.Parallel()
	readme := readText(t, examples+"README.md")
	for _, name := range filesBelow(t, examples) {
		if name != "README.md" && !strings.Contains(readme, "]("+name+")") {
			t.Errorf("%sREADME.md doesn't have %s", examples, name)
		}
	}
	for _, name := range []string{"service", "system", "sidecar"} {
		t.Run("nomad/"+name, func(t *testing.T) { nomadExample(t, name) })
	}
	t.Run("container", containerExample)
	t.Run("kubernetes", kubernetesExample)
	t.Run("ansible", ansibleExample)
	t.Run("ci", ciExample)
	t.Run("sh", shExample)
}

func readText(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func readYAML(t *testing.T, path string, v any) {
	t.Helper()
	if err := yaml.Unmarshal([]byte(readText(t, path)), v); err != nil {
		t.Fatalf("%s: %v", path, err)
	}
}

// flagsRun runs the arguments of an example's onlyone, with a command that ends at once.
func flagsRun(t *testing.T, args []string) {
	t.Helper()
	r := newRecipe(t)
	i := slices.Index(args, "--")
	if i < 1 || args[0] != "run" || i == len(args)-1 {
		t.Fatalf("not the arguments of a run: %q", args)
	}
	var line []string
	for _, a := range append([]string{onlyone}, args[:i]...) {
		line = append(line, "'"+strings.ReplaceAll(a, ":9099", ":0")+"'")
	}
	r.sh(0, strings.Join(line, " ")+" -- true")
}

// stops checks that the time until SIGKILL has room for --stop-timeout and the release (4 s).
func stops(t *testing.T, args []string, grace string) {
	t.Helper()
	timeout := 30
	if i := slices.Index(args, "--stop-timeout"); i > 0 {
		timeout, _ = strconv.Atoi(strings.TrimSuffix(args[i+1], "s"))
	}
	if has, err := strconv.Atoi(strings.TrimSuffix(grace, "s")); err != nil || has < timeout+5 {
		t.Errorf("it is killed after %s (%v), and --stop-timeout is %ds", grace, err, timeout)
	}
}

func jsonList(t *testing.T, text string) (list []string) {
	t.Helper()
	text = regexp.MustCompile(`(?m)^\s*#.*$|\s#.*$`).ReplaceAllString(text, "")
	text = regexp.MustCompile(`,\s*\]`).ReplaceAllString(text, "]")
	if err := json.Unmarshal([]byte(text), &list); err != nil {
		t.Fatalf("%v: %s", err, text)
	}
	return list
}

func containerExample(t *testing.T) {
	text := readText(t, examples+"container/Containerfile")
	m := regexp.MustCompile(`(?m)^ENTRYPOINT (\[.*\])$`).FindStringSubmatch(text)
	if m == nil {
		t.Fatal("no ENTRYPOINT in the exec form")
	}
	entry := jsonList(t, m[1])
	var compose struct {
		Services map[string]struct {
			Environment map[string]string
			Stop        string `yaml:"stop_grace_period"`
		}
	}
	readYAML(t, examples+"container/compose.yaml", &compose)
	stops(t, entry, compose.Services["billing"].Stop)
	flagsRun(t, entry[1:])
}

// TestScratch: the image of packaging/examples/container. Nothing is in it but two static
// programs, PID 1 is onlyone, and it has no rights.
func TestScratch(t *testing.T) {
	t.Parallel()
	needPID1(t)
	root := filepath.Join(t.TempDir(), "root")
	if err := os.MkdirAll(filepath.Join(root, "proc"), 0o755); err != nil {
		t.Fatal(err)
	}
	build := exec.Command("go", "build", "-o", filepath.Join(root, "onlyone"), ".")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	in := func(j *job, command ...string) *proc {
		args := []string{"unshare", "--fork", "--kill-child=KILL", "--pid", "--mount", "sh", "-c",
			`mount -t proc proc "$0/proc" && exec chroot --userspec=65534:65534 "$0" "$@"`, root}
		return j.start(append(append(args, "/onlyone", "run", j.name, "--"), command...)...)
	}
	for want, command := range map[int][]string{0: {"/onlyone", "version"}, 64: {"/onlyone", "no-such-command"}, 127: {"/no-such-file"}} {
		j := newJob(t, shared(t, consultest.Version()))
		in(j, command...).wait(want)
	}
}

func kubernetesExample(t *testing.T) {
	path := examples + "kubernetes/deployment.yaml"
	var d struct {
		Kind string
		Spec struct {
			Replicas int
			Selector struct {
				MatchLabels map[string]string `yaml:"matchLabels"`
			}
			Template struct {
				Metadata struct{ Labels map[string]string }
				Spec     struct {
					Grace      int `yaml:"terminationGracePeriodSeconds"`
					Containers []struct{ Command, Args []string }
				}
			}
		}
	}
	readYAML(t, path, &d)
	pod := d.Spec.Template.Spec
	if d.Kind != "Deployment" || d.Spec.Replicas < 2 || len(pod.Containers) != 1 || d.Spec.Selector.MatchLabels["app"] != d.Spec.Template.Metadata.Labels["app"] {
		t.Fatalf("%s: %+v", path, d)
	}
	c := pod.Containers[0]
	if !slices.Equal(c.Command, []string{"/onlyone"}) {
		t.Errorf("PID 1 is %q", c.Command)
	}
	stops(t, c.Args, fmt.Sprint(pod.Grace))
	if kubectl, err := exec.LookPath("kubectl"); err == nil {
		dir := t.TempDir()
		copyFile(t, path, filepath.Join(dir, "deployment.yaml"))
		if err := os.WriteFile(filepath.Join(dir, "kustomization.yaml"), []byte("resources: [deployment.yaml]\n"), 0o644); err != nil {
			t.Fatal(err)
		}
		if out, err := exec.Command(kubectl, "kustomize", dir).CombinedOutput(); err != nil {
			t.Errorf("kubectl kustomize: %v: %s", err, out)
		}
	}
	flagsRun(t, c.Args)
}

// ansibleExample plays the playbook on two hosts at once: one of them does it.
func ansibleExample(t *testing.T) {
	path := examples + "ansible/once.yaml"
	var plays []struct{ Tasks []map[string]any }
	readYAML(t, path, &plays)
	r := newRecipe(t)
	r.need("ansible-playbook", "ansible-core")
	r.script("migrate", "echo migrated; echo $ONLYONE_PERIOD >>"+r.dir+"/done")
	for name, text := range map[string]string{
		"once.yaml": r.in.Replace(readText(t, path)),
		"hosts":     "[web]\nweb-1\nweb-2\n[web:vars]\nansible_connection=local\nansible_python_interpreter=auto_silent\n",
	} {
		if err := os.WriteFile(filepath.Join(r.dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	play := func(want, release string, failing bool) {
		t.Helper()
		code := 0
		if failing {
			code = 2
		}
		out := r.sh(code, "ansible-playbook -i hosts --forks 2 -e gather_facts=false -e release="+release+" once.yaml",
			"HOME="+r.dir, "ANSIBLE_LOCAL_TEMP="+r.dir, "ANSIBLE_REMOTE_TEMP="+r.dir, "ANSIBLE_NOCOLOR=1")
		var changed []string
		for _, m := range regexp.MustCompile(`(?m)^web-\d +: .*changed=(\d)`).FindAllStringSubmatch(out, -1) {
			changed = append(changed, m[1])
		}
		slices.Sort(changed)
		if got := strings.Join(changed, ""); got != want {
			t.Errorf("changed=%s, want %s:\n%s", got, want, out)
		}
	}
	play("01", "1.0.0", false)
	play("00", "1.0.0", false)
	play("01", "1.1.0", false)
	if done := strings.Fields(readText(t, filepath.Join(r.dir, "done"))); len(done) != 2 {
		t.Errorf("it ran for %q", done)
	}
}

// ciExample runs the script of the CI job.
func ciExample(t *testing.T) {
	var flow struct {
		Jobs map[string]struct {
			Timeout int `yaml:"timeout-minutes"`
			Steps   []struct{ Run string }
		}
	}
	readYAML(t, examples+"ci/migrate.yaml", &flow)
	steps := flow.Jobs["migrate"].Steps
	script := steps[len(steps)-1].Run
	m := regexp.MustCompile(`--wait (\d+)m --max-runtime (\d+)m`).FindStringSubmatch(script)
	if m == nil {
		t.Fatal("no --wait and --max-runtime")
	}
	if number(t, m[1])+number(t, m[2]) >= flow.Jobs["migrate"].Timeout {
		t.Error("the job can be cut off while it waits or runs")
	}
	r := newRecipe(t)
	for _, c := range []struct {
		command, says string
		want          int
	}{
		{"exit 0", "", 0},
		{"exit 3", "the migration failed", 3},
		{"test -z \"${CONSUL_HTTP_TOKEN-}\" || exit 4", "", 0},
		{"exit 75", "somebody else has been migrating", 75},
	} {
		r.script("migrate.sh", c.command)
		// As the runner does: bash -e.
		if out := r.sh(c.want, "bash -e -o pipefail -c \"$SCRIPT\"", "SCRIPT="+script, "CONSUL_HTTP_TOKEN="); !strings.Contains(out, c.says) {
			t.Errorf("%s: it says %q", c.command, out)
		}
	}
}

// shExample runs the script as cron would, twice.
func shExample(t *testing.T) {
	path := examples + "sh/nightly"
	if shellcheck, err := exec.LookPath("shellcheck"); err == nil {
		if out, err := exec.Command(shellcheck, path).CombinedOutput(); err != nil {
			t.Errorf("shellcheck: %v: %s", err, out)
		}
	}
	r := newRecipe(t)
	path, err := filepath.Abs(path)
	if err != nil {
		t.Fatal(err)
	}
	reports := func() []string {
		files, _ := filepath.Glob(filepath.Join(r.dir, "report-*"))
		return files
	}
	for range 2 {
		if out := r.sh(0, path, "NIGHTLY_DIR="+r.dir); out != "" {
			t.Errorf("cron would mail %q", out)
		}
		files := reports()
		if len(files) != 1 || !regexp.MustCompile(`report-\d{4}-\d\d-\d\d$`).MatchString(files[0]) {
			t.Fatalf("reports: %q", files)
		}
	}
	// The second time it wasn't run: the token in the report is the first one's.
	if len(strings.Fields(readText(t, reports()[0]))) != 4 {
		t.Errorf("the report is %q", readText(t, reports()[0]))
	}
	if _, err := os.Stat(reports()[0] + ".new"); !errors.Is(err, os.ErrNotExist) {
		t.Error("a half-made report is left")
	}
}
