package consulmodel

import (
	"bytes"
	"encoding/json"
	"strconv"
	"strings"
	"time"
)

// render answers a query with what it saw.
func (m *Model) render(c *call, r *result) {
	out := response{status: 200, meta: true, index: r.index, leader: r.leader}
	if !r.leader {
		out.stale = time.Since(m.leaderAt)
	}
	switch c.req.Endpoint {
	case KVGet, KVList:
		switch {
		case len(r.entries) == 0:
			out.status, out.text = 404, true
		case c.par.raw && c.req.Endpoint == KVGet:
			out.body, out.raw = r.entries[0].Value, true
		default:
			out.body = append(out.body, '[')
			for i, e := range r.entries {
				if i > 0 {
					out.body = append(out.body, ',')
				}
				out.body = appendEntry(out.body, e, true)
			}
			out.body = append(out.body, ']')
		}
	case KVKeys:
		keys := keysOf(r.entries, c.req.Key, c.par.separator)
		if len(keys) == 0 && c.req.Key != "" {
			out.status, out.text = 404, true
			break
		}
		out.body, _ = json.Marshal(keys)
	case SessionGet, SessionList:
		out.body = appendSessions(nil, r.sessions)
	}
	m.finish(c, out)
}

// keysOf returns the names of entries, cut after the separator that follows the prefix, each once.
func keysOf(entries []*Entry, prefix, separator string) []string {
	keys := make([]string, 0, len(entries))
	for _, e := range entries {
		key := e.Key
		if separator != "" {
			if i := strings.Index(key[len(prefix):], separator); i >= 0 {
				key = key[:len(prefix)+i+len(separator)]
				if len(keys) > 0 && keys[len(keys)-1] == key {
					continue
				}
			}
		}
		keys = append(keys, key)
	}
	return keys
}

func (m *Model) self() []byte {
	version := "1.14.11"
	if m.opts.Version == V1_8 {
		version = "1.8.7"
	}
	b, _ := json.Marshal(map[string]any{
		"Config": map[string]any{"Datacenter": m.opts.Datacenter, "NodeName": m.opts.Node, "Server": true, "Version": version},
		"Member": map[string]any{"Name": m.opts.Node, "Status": 1},
	})
	return b
}

func appendSessions(b []byte, list []*session) []byte {
	if len(list) == 0 {
		return append(b, "[]"...)
	}
	b = append(b, '[')
	for i, s := range list {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(b, `{"ID":`...)
		b = appendString(b, s.ID)
		b = append(b, `,"Name":`...)
		b = appendString(b, s.Name)
		b = append(b, `,"Node":`...)
		b = appendString(b, s.Node)
		b = append(b, `,"LockDelay":`...)
		b = strconv.AppendInt(b, int64(s.LockDelay), 10)
		b = append(b, `,"Behavior":`...)
		b = appendString(b, s.Behavior)
		b = append(b, `,"TTL":`...)
		b = appendString(b, s.TTL)
		b = append(b, `,"NodeChecks":`...)
		b = appendStrings(b, s.NodeChecks)
		b = append(b, `,"ServiceChecks":`...)
		if len(s.ServiceChecks) == 0 {
			b = append(b, "null"...)
		} else {
			x, _ := json.Marshal(s.ServiceChecks)
			b = append(b, x...)
		}
		if len(s.Checks) > 0 {
			b = append(b, `,"Checks":`...)
			b = appendStrings(b, s.Checks)
		}
		b = append(b, `,"CreateIndex":`...)
		b = strconv.AppendUint(b, s.CreateIndex, 10)
		b = append(b, `,"ModifyIndex":`...)
		b = strconv.AppendUint(b, s.ModifyIndex, 10)
		b = append(b, '}')
	}
	return append(b, ']')
}

func appendStrings(b []byte, list []string) []byte {
	b = append(b, '[')
	for i, s := range list {
		if i > 0 {
			b = append(b, ',')
		}
		b = appendString(b, s)
	}
	return append(b, ']')
}

// appendEntry writes an entry as Consul does: Session is left out when empty; Value is null when empty, and for most
// verbs of a transaction.
func appendEntry(b []byte, e *Entry, value bool) []byte {
	b = append(b, `{"LockIndex":`...)
	b = strconv.AppendUint(b, e.LockIndex, 10)
	b = append(b, `,"Key":`...)
	b = appendString(b, e.Key)
	b = append(b, `,"Flags":`...)
	b = strconv.AppendUint(b, e.Flags, 10)
	b = append(b, `,"Value":`...)
	if value && len(e.Value) > 0 {
		b = append(b, '"')
		b = base64Std.AppendEncode(b, e.Value)
		b = append(b, '"')
	} else {
		b = append(b, "null"...)
	}
	if e.Session != "" {
		b = append(b, `,"Session":`...)
		b = appendString(b, e.Session)
	}
	b = append(b, `,"CreateIndex":`...)
	b = strconv.AppendUint(b, e.CreateIndex, 10)
	b = append(b, `,"ModifyIndex":`...)
	b = strconv.AppendUint(b, e.ModifyIndex, 10)
	return append(b, '}')
}

// appendString writes a JSON string; the plain ones, which nearly all are, without encoding/json.
func appendString(b []byte, s string) []byte {
	for i := range len(s) {
		if c := s[i]; c < ' ' || c > '~' || c == '"' || c == '\\' || c == '<' || c == '>' || c == '&' {
			x, _ := json.Marshal(s)
			return append(b, x...)
		}
	}
	b = append(b, '"')
	b = append(b, s...)
	return append(b, '"')
}

// decodeStrict is Consul's decoder: unknown fields are errors.
func decodeStrict(b []byte, v any) error {
	d := json.NewDecoder(bytes.NewReader(b))
	d.DisallowUnknownFields()
	return d.Decode(v)
}
