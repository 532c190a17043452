package telling

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	yaml "go.yaml.in/yaml/v2"
)

// rows are the lines of the table of a Markdown page below the heading that begin with a word
// in backquotes.
func rows(t *testing.T, page, heading string) []string {
	t.Helper()
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	_, section, found := strings.Cut(string(text), "\n## "+heading+"\n")
	if !found {
		t.Fatalf("%s has no heading %q", page, heading)
	}
	section, _, _ = strings.Cut(section, "\n## ")
	var all []string
	for line := range strings.Lines(section) {
		if strings.HasPrefix(line, "| `") {
			all = append(all, strings.TrimSpace(line))
		}
	}
	return all
}

// same says which rows a page lacks and which it has too many.
func same(t *testing.T, page string, got, want []string) {
	t.Helper()
	for _, row := range want {
		if !slices.Contains(got, row) {
			t.Errorf("%s lacks the row\n%s", page, row)
		}
	}
	for _, row := range got {
		if !slices.Contains(want, row) {
			t.Errorf("%s has a row that doesn't agree with the code:\n%s", page, row)
		}
	}
}

// TestMetricsPage: docs/metrics.md has every metric with its type, labels and meaning, and every
// value that a label can have.
func TestMetricsPage(t *testing.T) {
	const page = "../docs/metrics.md"
	for heading, descs := range map[string][]Desc{"From a file": FileMetrics(), "From a process": LiveMetrics()} {
		var want []string
		for _, d := range descs {
			want = append(want, fmt.Sprintf("| `%s` | %s | %s | %s |", d.Name, d.Type, strings.Join(d.Labels, ", "), d.Help))
		}
		same(t, page, rows(t, page, heading), want)
	}
	var want []string
	for label, values := range map[string][]string{"outcome": append(slices.Clone(outcomes), other), "state": states, "result": results, "cause": causes} {
		for _, v := range values {
			want = append(want, fmt.Sprintf("| `%s` | %s |", label, v))
		}
	}
	var got []string
	for _, row := range rows(t, page, "Values of labels") {
		got = append(got, regexp.MustCompile(`^\| .*? \| [a-z-]+ \|`).FindString(row))
	}
	same(t, page, got, want)
	text, err := os.ReadFile(page)
	if limits := fmt.Sprintf("At most %d connections are open at once, and each request has %.0f s.", maxConns, requestLimit.Seconds()); err != nil || !strings.Contains(string(text), limits) {
		t.Errorf("%s doesn't say: %s", page, limits)
	}
}

// TestResultPage: docs/telling.md has every field of the result file, in its order.
func TestResultPage(t *testing.T) {
	var want []string
	for f := range reflect.TypeFor[result]().Fields() {
		want = append(want, f.Tag.Get("json"))
	}
	var got []string
	for _, row := range rows(t, "../docs/telling.md", "Result file") {
		got = append(got, strings.Split(row, "`")[1])
	}
	if !slices.Equal(got, want) {
		t.Errorf("the page has %q, the file %q", got, want)
	}
}

type ruleFile struct {
	Groups []struct {
		Name  string
		Rules []struct {
			Alert, Expr, For    string
			Labels, Annotations map[string]string
		}
	}
}

func TestAlertRules(t *testing.T) {
	text, err := os.ReadFile("../packaging/prometheus/onlyone.rules.yml")
	if err != nil {
		t.Fatal(err)
	}
	var file ruleFile
	if err := yaml.UnmarshalStrict(text, &file); err != nil {
		t.Fatal(err)
	}
	alerts := 0
	for _, g := range file.Groups {
		for _, r := range g.Rules {
			alerts++
			if r.Alert == "" || r.Labels["severity"] == "" || r.Annotations["summary"] == "" {
				t.Errorf("the alert %q lacks something: %+v", r.Alert, r)
			}
			queryExists(t, r.Alert, r.Expr)
		}
	}
	if alerts == 0 {
		t.Error("there are no alerts")
	}
}

// dashboard is what we look at of Grafana's JSON.
type dashboard struct {
	Title, UID string
	Templating struct{ List []struct{ Definition string } }
	Panels     []struct {
		ID          int
		Title, Type string
		Targets     []struct{ Expr string }
	}
}

func readDashboard(t *testing.T) dashboard {
	t.Helper()
	text, err := os.ReadFile("../packaging/grafana/onlyone.json")
	if err != nil {
		t.Fatal(err)
	}
	var d dashboard
	if err := json.Unmarshal(text, &d); err != nil {
		t.Fatal(err)
	}
	return d
}

// TestDashboard: it asks for metrics that exist, and leaves none out.
func TestDashboard(t *testing.T) {
	d := readDashboard(t)
	ids, all := map[int]bool{}, ""
	for _, p := range d.Panels {
		if ids[p.ID] || p.Title == "" || p.Type != "row" && len(p.Targets) == 0 {
			t.Errorf("panel %d %q: its id isn't unique, or it is empty", p.ID, p.Title)
		}
		ids[p.ID] = true
		for _, target := range p.Targets {
			queryExists(t, p.Title, target.Expr)
			all += target.Expr + "\n"
		}
	}
	for _, v := range d.Templating.List {
		if v.Definition != "" {
			queryExists(t, "a variable", v.Definition)
		}
	}
	for _, m := range append(FileMetrics(), LiveMetrics()...) {
		if !strings.Contains(all, m.Name) {
			t.Errorf("no panel shows %s", m.Name)
		}
	}
}

// queryExists: each metric in a query exists, with the labels by which it is selected.
func queryExists(t *testing.T, where, query string) {
	t.Helper()
	labels := map[string][]string{}
	for _, d := range append(FileMetrics(), LiveMetrics()...) {
		labels[d.Name] = d.Labels
		if d.Type == "histogram" {
			for _, suffix := range []string{"_bucket", "_sum", "_count"} {
				labels[d.Name+suffix] = append(slices.Clone(d.Labels), "le")
			}
			delete(labels, d.Name)
		}
	}
	used := regexp.MustCompile(`onlyone_\w+(\{[^}]*\})?`).FindAllString(query, -1)
	if len(used) == 0 {
		t.Errorf("%s asks for nothing of ours: %s", where, query)
	}
	for _, metric := range used {
		name, selector, _ := strings.Cut(metric, "{")
		if labels[name] == nil {
			t.Errorf("%s asks for %s, which doesn't exist", where, name)
			continue
		}
		for _, m := range regexp.MustCompile(`(\w+)\s*(?:=~|!~|!=|=)`).FindAllStringSubmatch(selector, -1) {
			if !slices.Contains(labels[name], m[1]) && m[1] != "instance" && m[1] != "job" {
				t.Errorf("%s selects %s by %s, which it doesn't have", where, name, m[1])
			}
		}
	}
}

// TestPromtool has Prometheus' own tool read all queries and play the examples of the alerts.
func TestPromtool(t *testing.T) {
	promtool, err := exec.LookPath("promtool")
	if err != nil {
		t.Skip("promtool isn't in PATH; it is in Debian's package prometheus")
	}
	check := func(args ...string) {
		t.Helper()
		if out, err := exec.Command(promtool, args...).CombinedOutput(); err != nil {
			t.Errorf("promtool %q: %v\n%s", args, err, out)
		}
	}
	check("check", "rules", "--lint-fatal", "../packaging/prometheus/onlyone.rules.yml")
	check("test", "rules", "../packaging/prometheus/onlyone.test.yml")
	var queries strings.Builder
	queries.WriteString("groups:\n- name: dashboard\n  rules:\n")
	for _, p := range readDashboard(t).Panels {
		for i, target := range p.Targets {
			fmt.Fprintf(&queries, "  - {record: 'panel:p%d_%d', expr: '%s'}\n", p.ID, i, target.Expr)
		}
	}
	path := filepath.Join(t.TempDir(), "dashboard.yml")
	if err := os.WriteFile(path, []byte(queries.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	check("check", "rules", path)

	for name, text := range map[string][]byte{"live": NewMetrics("backup", "1").text(), "file": history{name: "backup", outcome: Exited}.text()} {
		c := exec.Command(promtool, "check", "metrics")
		c.Stdin = strings.NewReader(string(text))
		if out, err := c.CombinedOutput(); err != nil || len(out) > 0 {
			t.Errorf("promtool check metrics, %s: %v\n%s", name, err, out)
		}
	}
}
