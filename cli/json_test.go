package cli

import (
	"os"
	"reflect"
	"regexp"
	"strings"
	"testing"
)

// docs/json.md has each field that a command writes, and no other.
func TestJSONPage(t *testing.T) {
	b, err := os.ReadFile("../docs/json.md")
	if err != nil {
		t.Fatal(err)
	}
	documented := map[string]bool{}
	for _, m := range regexp.MustCompile("`([a-z_]+)`").FindAllStringSubmatch(string(b), -1) {
		documented[m[1]] = true
	}
	written := map[string]bool{}
	for _, v := range []any{locksJSON{}, historyJSON{}, checkJSON{}, stepDownJSON{}, pauseJSON{}, unlockJSON{}, resizeJSON{},
		doctorReport{}, drainReport{}, claimJSON{}, explanation{}} {
		fields(reflect.TypeOf(v), written)
	}
	for name := range written {
		if !documented[name] {
			t.Errorf("docs/json.md has no `%s`", name)
		}
	}
	for word := range strings.FieldsSeq(`status ls history check pause resume unlock resize doctor drain undrain verify held free foreign null ok warn fail
		exited signaled stopped timeout lost failed begun ended asked refused`) {
		written[word] = true // commands and values
	}
	for name := range documented {
		if !written[name] {
			t.Errorf("docs/json.md has `%s`, which no command writes", name)
		}
	}
}

// fields collects the JSON names of a type's fields.
func fields(t reflect.Type, names map[string]bool) {
	for t.Kind() == reflect.Pointer || t.Kind() == reflect.Slice {
		t = t.Elem()
	}
	if t.Kind() != reflect.Struct {
		return
	}
	for f := range t.Fields() {
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		if !f.IsExported() || name == "-" {
			continue
		}
		if name != "" {
			names[name] = true
		}
		fields(f.Type, names)
	}
}
