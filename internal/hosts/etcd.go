//go:build linux

package main

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"path/filepath"
	"strings"
)

// etcdCluster is etcd, on the same server hosts as Consul.
type etcdCluster struct {
	lab     *lab
	servers []*process
}

// etcdProxy is where a host's programs reach server i: there is no agent.
func etcdProxy(i int) string { return fmt.Sprintf("127.0.0.1:%d", 2391+i) }

func etcdProxies() string {
	var all []string
	for i := range numServers {
		all = append(all, etcdProxy(i))
	}
	return strings.Join(all, ",")
}

func (c *etcdCluster) name() string          { return storeEtcd }
func (c *etcdCluster) server(i int) *process { return c.servers[i] }
func (c *etcdCluster) disk(i int) string {
	return filepath.Join(c.lab.opt.Dir, "etcd-"+c.lab.servers[i].name)
}

func (c *etcdCluster) startServer(i int) (err error) {
	h := c.lab.servers[i]
	var cluster []string
	for _, s := range c.lab.servers {
		cluster = append(cluster, fmt.Sprintf("%s=http://%s:2380", s.name, s.addr))
	}
	peer, client := "http://"+h.addr+":2380", "http://"+h.addr+":2379"
	c.servers[i], err = c.lab.start(h, "etcd."+h.name, nil, c.lab.opt.Binaries["etcd"], "--name="+h.name, "--data-dir="+filepath.Join(c.disk(i), "data"),
		"--listen-peer-urls="+peer, "--initial-advertise-peer-urls="+peer, "--listen-client-urls="+client, "--advertise-client-urls="+client,
		"--initial-cluster="+strings.Join(cluster, ","), "--logger=zap", "--log-level=warn")
	return err
}

func (c *etcdCluster) ask(ctx context.Context, i int, path string, body, answer any) error {
	b, err := json.Marshal(body)
	if err != nil {
		return err
	}
	b, err = request(ctx, http.DefaultClient, "POST", "http://"+c.lab.servers[i].addr+":2379"+path, b)
	if err != nil {
		return err
	}
	return json.Unmarshal(b, answer)
}

func (c *etcdCluster) askAny(ctx context.Context, path string, body, answer any) (err error) {
	for i := range c.servers {
		if err = c.ask(ctx, i, path, body, answer); err == nil {
			return nil
		}
	}
	return err
}

func (c *etcdCluster) leader(ctx context.Context) (int, error) {
	var last error
	for i := range c.servers {
		var status struct {
			Leader string
			Header struct {
				Member string `json:"member_id"`
			}
		}
		if err := c.ask(ctx, i, "/v3/maintenance/status", struct{}{}, &status); err != nil {
			last = err
		} else if status.Leader == status.Header.Member {
			return i, nil
		}
	}
	return 0, errors.Join(errors.New("etcd has no leader"), last)
}

// below asks for all keys that begin with prefix.
func below(prefix string) map[string]string {
	end := []byte(prefix)
	end[len(end)-1]++
	return map[string]string{
		"key":       base64.StdEncoding.EncodeToString([]byte(prefix)),
		"range_end": base64.StdEncoding.EncodeToString(end),
	}
}

// holder is the entry of the holder: the oldest one.
func (c *etcdCluster) holder(ctx context.Context, prefix string) (key, lease string, err error) {
	ask := map[string]any{"sort_order": "ASCEND", "sort_target": "CREATE", "limit": 1}
	for k, v := range below(prefix) {
		ask[k] = v
	}
	var found struct {
		Kvs []struct{ Key, Lease string }
	}
	if err := c.askAny(ctx, "/v3/kv/range", ask, &found); err != nil {
		return "", "", err
	}
	if len(found.Kvs) != 1 {
		return "", "", fmt.Errorf("nothing is below %s", prefix)
	}
	return found.Kvs[0].Key, found.Kvs[0].Lease, nil
}

func (c *etcdCluster) revoke(ctx context.Context, prefix string) error {
	_, lease, err := c.holder(ctx, prefix)
	if err != nil {
		return err
	}
	return c.askAny(ctx, "/v3/lease/revoke", map[string]string{"ID": lease}, &struct{}{})
}

func (c *etcdCluster) write(ctx context.Context, key string, value []byte) error {
	return c.askAny(ctx, "/v3/kv/put", map[string]string{
		"key":   base64.StdEncoding.EncodeToString([]byte(key)),
		"value": base64.StdEncoding.EncodeToString(value),
	}, &struct{}{})
}

func (c *etcdCluster) delete(ctx context.Context, prefix string) error {
	key, _, err := c.holder(ctx, prefix)
	if err != nil {
		return err
	}
	return c.askAny(ctx, "/v3/kv/deleterange", map[string]string{"key": key}, &struct{}{})
}
