//go:build linux

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// The stores, and the addresses of proxies and agents on each host.
const (
	storeConsul = "consul"
	storeEtcd   = "etcd"

	consulAgent = "127.0.0.1:8500"
	consulProxy = "127.0.0.1:8501"
)

// requestTimeout is that of the operator's requests.
const requestTimeout = 5 * time.Second

// A store is a cluster of servers, one on each server host.
type store interface {
	name() string
	startServer(i int) error // that isn't running
	server(i int) *process
	leader(ctx context.Context) (int, error)
	write(ctx context.Context, key string, value []byte) error
	disk(i int) string // where it keeps its data: a small file system of its own
}

// consulCluster is Consul: servers, and an agent on each host.
type consulCluster struct {
	lab     *lab
	servers []*process
	agents  []*process
}

func (c *consulCluster) name() string          { return storeConsul }
func (c *consulCluster) server(i int) *process { return c.servers[i] }
func (c *consulCluster) disk(i int) string {
	return filepath.Join(c.lab.opt.Dir, "consul-"+c.lab.servers[i].name)
}

func (c *consulCluster) args(h *host, dir string) []string {
	a := []string{c.lab.opt.Binaries["consul"], "agent", "-node=" + h.name, "-bind=" + h.addr, "-data-dir=" + dir,
		"-dns-port=-1", "-grpc-port=-1", "-log-level=info", "-retry-interval=1s",
		"-hcl=disable_update_check=true connect{enabled=false}"}
	if c.lab.opt.Consul != "1.8" {
		a = append(a, "-grpc-tls-port=-1")
	}
	for _, s := range c.lab.servers {
		a = append(a, "-retry-join="+s.addr)
	}
	return a
}

// Consul's defaults count: raft_multiplier is 5.
func (c *consulCluster) startServer(i int) (err error) {
	h := c.lab.servers[i]
	args := append(c.args(h, c.disk(i)), "-server", "-serf-wan-port=-1", fmt.Sprintf("-bootstrap-expect=%d", numServers), "-client=0.0.0.0")
	c.servers[i], err = c.lab.start(h, "consul."+h.name, nil, args...)
	return err
}

func (c *consulCluster) startAgent(i int) (err error) {
	h := c.lab.hosts[i]
	dir := filepath.Join(c.lab.opt.Dir, "consul-"+h.name)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	c.agents[i], err = c.lab.start(h, "consul."+h.name, nil, append(c.args(h, dir), "-client=127.0.0.1")...)
	return err
}

func (c *consulCluster) leader(ctx context.Context) (int, error) {
	var last error
	for i := range c.servers {
		b, err := c.ask(ctx, i, "GET", "/v1/status/leader", nil)
		if err != nil {
			last = err
			continue
		}
		var addr string
		if err := json.Unmarshal(b, &addr); err != nil {
			last = err
			continue
		}
		for i, h := range c.lab.servers {
			if strings.HasPrefix(addr, h.addr+":") {
				return i, nil
			}
		}
	}
	return 0, errors.Join(errors.New("consul has no leader"), last)
}

// ready says why a host's agent can't be used yet.
func (c *consulCluster) ready(ctx context.Context, i int) error {
	h := c.lab.hosts[i]
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, addr string) (net.Conn, error) {
		return h.dial(ctx, addr)
	}}}
	b, err := request(ctx, client, "GET", "http://"+consulAgent+"/v1/catalog/nodes?consistent", nil)
	if err != nil {
		return err
	}
	var nodes []struct{ Node string }
	if err := json.Unmarshal(b, &nodes); err != nil {
		return err
	}
	if len(nodes) != numServers+numHosts {
		return fmt.Errorf("the catalog has %d nodes", len(nodes))
	}
	return nil
}

// whole reports whether all servers have a vote. One that autopilot has removed while it was
// down gets it back some 10 s after its return.
func (c *consulCluster) whole(ctx context.Context) error {
	b, err := c.askAny(ctx, "GET", "/v1/operator/raft/configuration", nil)
	if err != nil {
		return err
	}
	var raft struct{ Servers []struct{ Voter bool } }
	if err := json.Unmarshal(b, &raft); err != nil {
		return err
	}
	voters := 0
	for _, s := range raft.Servers {
		if s.Voter {
			voters++
		}
	}
	if voters != numServers {
		return fmt.Errorf("%d servers have a vote", voters)
	}
	return nil
}

// ask sends a request to a server.
func (c *consulCluster) ask(ctx context.Context, i int, method, path string, body []byte) ([]byte, error) {
	return request(ctx, http.DefaultClient, method, "http://"+c.lab.servers[i].addr+":8500"+path, body)
}

// askAny sends a request to the servers until one does it.
func (c *consulCluster) askAny(ctx context.Context, method, path string, body []byte) (b []byte, err error) {
	for i := range c.servers {
		if b, err = c.ask(ctx, i, method, path, body); err == nil {
			return b, nil
		}
	}
	return nil, err
}

func (c *consulCluster) destroy(ctx context.Context, key string) error {
	b, err := c.askAny(ctx, "GET", "/v1/kv/"+key+"?consistent", nil)
	if err != nil {
		return err
	}
	var entries []struct{ Session string }
	if err := json.Unmarshal(b, &entries); err != nil {
		return err
	}
	if len(entries) != 1 || entries[0].Session == "" {
		return fmt.Errorf("%s isn't locked", key)
	}
	_, err = c.askAny(ctx, "PUT", "/v1/session/destroy/"+entries[0].Session, nil)
	return err
}

func (c *consulCluster) delete(ctx context.Context, key string) error {
	_, err := c.askAny(ctx, "DELETE", "/v1/kv/"+key, nil)
	return err
}

func (c *consulCluster) write(ctx context.Context, key string, value []byte) error {
	_, err := c.askAny(ctx, "PUT", "/v1/kv/"+key, value)
	return err
}

func (c *consulCluster) snapshot(ctx context.Context) ([]byte, error) {
	return c.askAny(ctx, "GET", "/v1/snapshot", nil)
}

func (c *consulCluster) restore(ctx context.Context, snapshot []byte) error {
	_, err := c.askAny(ctx, "PUT", "/v1/snapshot", snapshot)
	return err
}

// request makes one request; everything but 200 is an error.
func request(ctx context.Context, client *http.Client, method, url string, body []byte) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, method, url, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	resp, err := client.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s %s: %s: %s", method, url, resp.Status, bytes.TrimSpace(b))
	}
	return b, err
}
