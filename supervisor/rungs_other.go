//go:build !linux

package supervisor

import "errors"

// Rungs on systems that onlyone doesn't know: there is none.
func Rungs() []Rung {
	return []Rung{{Name: "subreaper", Use: "what the command leaves behind is killed", Needed: true, Err: errors.New("only Linux has what is needed")}}
}
