package consulmodel

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"time"
)

var base64Std = base64.StdEncoding

type txnBody struct {
	KV                   *txnKV
	Node, Service, Check json.RawMessage
}

// none reports whether there is no operation at all, which Consul passes over.
func (b *txnBody) none() bool {
	for _, raw := range []json.RawMessage{b.Node, b.Service, b.Check} {
		if len(raw) > 0 && string(raw) != "null" {
			return false
		}
	}
	return true
}

type txnKV struct {
	Verb      string
	Key       string
	Value     []byte
	Flags     uint64
	Index     uint64
	Session   string
	Namespace string
	Partition string
}

func (kv *txnKV) op() TxnOp {
	return TxnOp{kv.Verb, kv.Key, kv.Value, kv.Flags, kv.Index, kv.Session}
}

func isWriteVerb(verb string) bool {
	switch verb {
	case "set", "delete", "delete-cas", "delete-tree", "cas", "lock", "unlock":
		return true
	}
	return false
}

// parseTxn reads the operations; false if c is rejected.
func (m *Model) parseTxn(c *call) bool {
	if len(c.body) > maxBody {
		c.reject(413, m.tooLarge(len(c.body), "txn_max_req_len"))
		return false
	}
	ops, ok := scanTxn(c.body)
	if !ok {
		var in []txnBody
		if err := decodeStrict(c.body, &in); err != nil {
			c.reject(400, "Failed to parse body: "+err.Error())
			return false
		}
		ops = ops[:0]
		for i := range in {
			switch {
			case in[i].KV != nil:
				ops = append(ops, in[i].KV.op())
			case !in[i].none():
				c.reject(501, "consulmodel: only KV operations are modelled")
				return false
			}
		}
	}
	limit := 128
	if m.opts.Version == V1_8 {
		limit = 64
	}
	if len(ops) > limit {
		c.reject(413, fmt.Sprintf("Transaction contains too many operations (%d > %d)", len(ops), limit))
		return false
	}
	c.req.Ops = ops
	for i := range ops {
		if isWriteVerb(ops[i].Verb) {
			c.req.Endpoint = TxnWrite
			break
		}
	}
	return true
}

// txnError is one failed operation.
type txnError struct {
	OpIndex int
	What    string
}

// txnResult is an entry of the answer; get and get-tree have its value, the other verbs null.
type txnResult struct {
	e     *Entry
	value bool
}

// txn carries a transaction out as a whole, or not at all.
func (m *Model) txn(c *call) {
	errs := m.txnCheck(c)
	if len(errs) > 0 {
		m.txnReply(c, nil, errs)
		return
	}
	if c.req.Endpoint == TxnRead {
		results, errs := m.txnApply(c)
		m.txnReply(c, results, errs)
		return
	}
	m.next()
	saved := m.kv
	m.kv.keys = slices.Clone(saved.keys)
	results, errs := m.txnApply(c)
	if len(errs) > 0 {
		m.kv = saved
		m.pending = m.pending[:0]
		m.dirty = m.dirty[:0]
	}
	m.commit()
	m.txnReply(c, results, errs)
}

// txnCheck is what the leader verifies before it writes anything: names, rights, lock-delays.
func (m *Model) txnCheck(c *call) (errs []txnError) {
	for i := range c.req.Ops {
		op := &c.req.Ops[i]
		right := KeyWrite // unknown verbs and check-not-exists, too
		switch op.Verb {
		case "get", "get-tree", "get-or-empty":
			right = ""
			if op.Verb == "get-or-empty" && m.opts.Version == V1_8 {
				right = KeyWrite
			}
		case "check-session", "check-index":
			right = KeyRead
		}
		switch {
		case op.Key == "" && op.Verb != "delete-tree":
			errs = append(errs, txnError{i, "Must provide key"})
		case right != "" && !m.may(c, right, op.Key):
			errs = append(errs, txnError{i, m.denied(c, right, op.Key)})
		case op.Verb == "lock" && m.delayed(op.Key):
			errs = append(errs, txnError{i, fmt.Sprintf("failed to lock key %q due to lock delay", op.Key)})
		}
	}
	return errs
}

// txnApply runs the operations one after the other on the store.
func (m *Model) txnApply(c *call) (results []txnResult, errs []txnError) {
	results = make([]txnResult, 0, len(c.req.Ops))
	for i := range c.req.Ops {
		op := &c.req.Ops[i]
		e, what := m.txnOp(op, &results)
		if what != "" {
			errs = append(errs, txnError{i, what})
		} else if e != nil {
			results = append(results, txnResult{e, op.Verb == "get" || op.Verb == "get-or-empty"})
		}
	}
	if m.opts.ACL != nil {
		results = slices.DeleteFunc(results, func(r txnResult) bool { return !m.may(c, KeyRead, r.e.Key) })
	}
	return results, errs
}

// txnOp runs one operation. It returns the entry to show and what went wrong.
func (m *Model) txnOp(op *TxnOp, results *[]txnResult) (e *Entry, what string) {
	ok := true
	switch op.Verb {
	case "set", "cas", "lock", "unlock":
		e = &Entry{Key: op.Key, Value: op.Value, Flags: op.Flags}
	case "get", "get-or-empty", "check-session", "check-index", "check-not-exists":
		e = m.kv.get(op.Key)
	}
	switch op.Verb {
	case "set":
		m.put(e, false)
	case "cas":
		e.ModifyIndex = op.Index
		if !m.cas(e) {
			what = fmt.Sprintf("failed to set key %q, index is stale", op.Key)
		}
	case "lock":
		e.Session = op.Session
		if ok, what = m.lock(e); !ok && what == "" {
			what = fmt.Sprintf("failed to lock key %q, lock is already held", op.Key)
		}
	case "unlock":
		e.Session = op.Session
		if ok, what = m.unlock(e); !ok && what == "" {
			what = fmt.Sprintf("failed to unlock key %q, lock isn't held, or is held by another session", op.Key)
		}
	case "delete":
		m.remove(op.Key)
	case "delete-cas":
		if !m.removeCAS(op.Key, op.Index) {
			what = fmt.Sprintf("failed to delete key %q, index is stale", op.Key)
		}
	case "delete-tree":
		m.removeTree(op.Key)
	case "get":
		if e == nil {
			what = fmt.Sprintf("key %q doesn't exist", op.Key)
		}
	case "get-or-empty":
		if m.opts.Version == V1_8 {
			return nil, fmt.Sprintf("unknown KV verb %q", op.Verb)
		}
		if e == nil {
			e = &Entry{Key: op.Key, Flags: op.Flags, Session: op.Session, ModifyIndex: op.Index}
		}
	case "get-tree":
		for _, x := range m.kv.prefix(op.Key) {
			*results = append(*results, txnResult{x, true})
		}
	case "check-session":
		if e == nil {
			what = fmt.Sprintf("failed to check session, key %q doesn't exist", op.Key)
		} else if e.Session != op.Session {
			what = fmt.Sprintf("failed session check for key %q, current session %q != %q", op.Key, e.Session, op.Session)
		}
	case "check-index":
		if e == nil {
			what = fmt.Sprintf("failed to check index, key %q doesn't exist", op.Key)
		} else if e.ModifyIndex != op.Index {
			what = fmt.Sprintf("failed index check for key %q, current modify index %d != %d", op.Key, e.ModifyIndex, op.Index)
		}
	case "check-not-exists":
		if e != nil {
			what = fmt.Sprintf("key %q exists", op.Key)
		}
	default:
		what = fmt.Sprintf("unknown KV verb %q", op.Verb)
	}
	return e, what
}

func (m *Model) txnReply(c *call, results []txnResult, errs []txnError) {
	out := response{status: 200, meta: c.req.Endpoint == TxnRead, leader: m.leader}
	if out.meta && !m.leader {
		out.stale = time.Since(m.leaderAt)
	}
	b := make([]byte, 0, 64+192*len(results))
	if len(errs) > 0 {
		out.status = 409
		b = append(b, `{"Results":null,"Errors":[`...)
		for i, e := range errs {
			if i > 0 {
				b = append(b, ',')
			}
			b = append(b, `{"OpIndex":`...)
			b = strconv.AppendInt(b, int64(e.OpIndex), 10)
			b = append(b, `,"What":`...)
			b = appendString(b, e.What)
			b = append(b, '}')
		}
		b = append(b, ']')
	} else {
		b = append(b, `{"Results":[`...)
		for i, r := range results {
			if i > 0 {
				b = append(b, ',')
			}
			b = append(b, `{"KV":`...)
			b = appendEntry(b, r.e, r.value)
			b = append(b, '}')
		}
		b = append(b, `],"Errors":null`...)
	}
	if out.meta { // a read answers with its metadata
		if m.opts.Version == V1_8 {
			b = append(b, `,"Index":0,"LastContact":`...)
		} else {
			b = append(b, `,"NotModified":false,"Backend":0,"ResultsFilteredByACLs":false,"Index":1,"LastContact":`...)
		}
		b = strconv.AppendInt(b, int64(out.stale), 10)
		b = append(b, `,"ConsistencyLevel":"","KnownLeader":`...)
		b = strconv.AppendBool(b, out.leader)
	}
	out.body = append(b, '}')
	m.finish(c, out)
}
