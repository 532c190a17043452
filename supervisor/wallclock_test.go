package supervisor

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"strings"
	"testing"
)

// Wall-clock jumps change nothing, because nothing that decides reads that clock: the
// lease and the guard know only the boot clock. This holds the places that may.
func TestLeaseDoesNotReadTheWallClock(t *testing.T) {
	allowed := map[string]string{
		"command":     "the times in the record of runs",
		"handle":      "the same, in the guard",
		"releaseTerm": "the same, in the guard",
		"newCgroup":   "a name",
		"writeWithin": "a limit for a pipe (monotonic)",
	}
	set := token.NewFileSet()
	names, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	seen := 0
	for _, name := range names {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		file, err := parser.ParseFile(set, name, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range file.Decls {
			f, ok := d.(*ast.FuncDecl)
			if !ok {
				continue
			}
			ast.Inspect(f, func(n ast.Node) bool {
				sel, ok := n.(*ast.SelectorExpr)
				if !ok {
					return true
				}
				pkg, ok := sel.X.(*ast.Ident)
				if !ok || pkg.Name != "time" {
					return true
				}
				switch sel.Sel.Name {
				case "Now", "Since", "Until", "AfterFunc":
					seen++
					if _, ok := allowed[f.Name.Name]; !ok && !(sel.Sel.Name == "AfterFunc" && f.Name.Name == "Quit") {
						t.Errorf("%s: %s reads the wall clock (time.%s)", set.Position(n.Pos()), f.Name.Name, sel.Sel.Name)
					}
				}
				return true
			})
		}
	}
	if seen == 0 {
		t.Error("no use of the clock was found: this test looks in the wrong place")
	}
}
