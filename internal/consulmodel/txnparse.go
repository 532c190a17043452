package consulmodel

import (
	"strconv"
	"strings"
)

// scanTxn reads a transaction as Go's client writes it: compact, plain strings, KV operations only. Whatever else comes,
// and every error, is left to encoding/json (false). It is here because that costs a quarter of a request.
func scanTxn(body []byte) ([]TxnOp, bool) {
	p := scanner{s: strings.TrimRight(string(body), "\n")}
	var ops []TxnOp
	p.list('[', ']', func() {
		var op TxnOp
		kv := false
		p.list('{', '}', func() {
			switch p.name() {
			case "KV":
				kv = true
				p.op(&op)
			case "Node", "Service", "Check":
				p.null()
			default:
				p.bad = true
			}
		})
		p.bad = p.bad || !kv
		ops = append(ops, op)
	})
	return ops, !p.bad && p.s == ""
}

// scanner takes JSON from the front of s; bad stays true once it is.
type scanner struct {
	s   string
	bad bool
}

func (p *scanner) take(token string) bool {
	rest, ok := strings.CutPrefix(p.s, token)
	if ok {
		p.s = rest
	}
	return ok
}

// list reads elements between open and end, separated by commas; at least one.
func (p *scanner) list(open, end byte, element func()) {
	if p.s == "" || p.s[0] != open {
		p.bad = true
		return
	}
	for !p.bad {
		p.s = p.s[1:] // the opening or a comma
		element()
		switch {
		case p.s == "":
			p.bad = true
		case p.s[0] == end:
			p.s = p.s[1:]
			return
		case p.s[0] != ',':
			p.bad = true
		}
	}
}

func (p *scanner) null() {
	p.bad = p.bad || !p.take("null")
}

// text reads a string of printable ASCII without escapes.
func (p *scanner) text() string {
	if !p.take(`"`) {
		p.bad = true
		return ""
	}
	for i := range len(p.s) {
		switch c := p.s[i]; {
		case c == '"':
			s := p.s[:i]
			p.s = p.s[i+1:]
			return s
		case c < ' ' || c > '~' || c == '\\':
			p.bad = true
			return ""
		}
	}
	p.bad = true
	return ""
}

func (p *scanner) name() string {
	s := p.text()
	p.bad = p.bad || !p.take(":")
	return s
}

func (p *scanner) number() uint64 {
	i := 0
	for i < len(p.s) && p.s[i] >= '0' && p.s[i] <= '9' {
		i++
	}
	n, err := strconv.ParseUint(p.s[:i], 10, 64)
	p.bad = p.bad || err != nil || i > 1 && p.s[0] == '0'
	p.s = p.s[i:]
	return n
}

func (p *scanner) op(op *TxnOp) {
	p.list('{', '}', func() {
		switch p.name() {
		case "Verb":
			op.Verb = p.text()
		case "Key":
			op.Key = p.text()
		case "Value":
			if p.take("null") {
				op.Value = nil
				return
			}
			v, err := base64Std.DecodeString(p.text())
			op.Value, p.bad = v, p.bad || err != nil
		case "Flags":
			op.Flags = p.number()
		case "Index":
			op.Index = p.number()
		case "Session":
			op.Session = p.text()
		default:
			p.bad = true
		}
	})
}
