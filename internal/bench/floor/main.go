// Floor is the least that a program could do: the five requests of an uncontended
// "onlyone run" and the same command, without a lease, a guard, signals or messages.
//
//	floor NAME CMD [ARG...]
package main

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"strings"
)

func main() {
	if len(os.Args) < 3 {
		os.Exit(64)
	}
	dir := "onlyone/" + os.Args[1] + "/"
	answer := put("/v1/session/create", `{"Name": "floor", "TTL": "10s", "LockDelay": "20s", "Behavior": "release", "NodeChecks": []}`)
	var session struct{ ID string }
	check(json.Unmarshal(answer, &session))
	txn(op("get-tree", dir, "", ""))
	txn(op("lock", dir+".lock", session.ID, "held"), op("get-tree", dir+".runs", "", ""), op("set", dir+".holder", "", "held"))
	cmd := exec.Command(os.Args[2], os.Args[3:]...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	check(cmd.Run())
	txn(op("unlock", dir+".lock", session.ID, "released"), op("set", dir+".runs", "", "one more"))
	put("/v1/session/destroy/"+session.ID, "")
}

// lockFlags marks a lock key (api.LockFlagValue).
const lockFlags = 3304740253564472344

func op(verb, key, session, value string) string {
	return fmt.Sprintf(`{"KV": {"Verb": %q, "Key": %q, "Session": %q, "Value": %q, "Flags": %d}}`,
		verb, key, session, base64.StdEncoding.EncodeToString([]byte(value)), uint64(lockFlags))
}

func txn(ops ...string) { put("/v1/txn?consistent=", "["+strings.Join(ops, ", ")+"]") }

func put(path, body string) []byte {
	req, err := http.NewRequest("PUT", "http://"+os.Getenv("CONSUL_HTTP_ADDR")+path, strings.NewReader(body))
	check(err)
	resp, err := http.DefaultClient.Do(req)
	check(err)
	defer resp.Body.Close()
	answer, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s: %s", path, resp.Status, answer)
	}
	check(err)
	return answer
}

func check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "floor:", err)
		os.Exit(1)
	}
}
