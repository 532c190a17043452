package consulsession

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/hashicorp/consul/api"
)

// Names lists the names of the locks below prefix, by one request. A lock that nobody has
// ever held isn't among them.
func Names(ctx context.Context, c ClientConfig, prefix string) ([]string, error) {
	client, t, err := newAPI(c, 2)
	if err != nil {
		return nil, err
	}
	defer t.closeIdle()
	// What a lock has begins with "NAME/.", and Consul sends one line for all of it: the
	// separator ends a key. Only queue entries come besides.
	keys, _, err := client.KV().Keys(prefix+"/", "/.", (&api.QueryOptions{}).WithContext(ctx))
	if err != nil {
		return nil, fmt.Errorf("cannot list the locks below %s: %w", prefix, err)
	}
	var names []string
	for _, key := range keys {
		if name, ok := strings.CutSuffix(strings.TrimPrefix(key, prefix+"/"), "/."); ok {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return slices.Compact(names), nil
}
