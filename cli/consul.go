package cli

import (
	"errors"
	"strings"

	"github.com/urfave/cli/v2"

	"github.com/a-seed-0bc5ead7/onlyone/consulsession"
)

// ConsulFlags are consul's own flags. A zero value wasn't given: the CONSUL_* variables and
// Consul's defaults count.
type ConsulFlags struct {
	Addresses  []string // --http-addr
	Token      string
	TokenFile  string
	CAFile     string
	CAPath     string
	ClientCert string
	ClientKey  string
	ServerName string // --tls-server-name
	Datacenter string
	Namespace  string
	Partition  string
}

// consulFlagList is consul's own flags, for each command that asks Consul. They are the last
// of a command's flags, and its action reads them with consulFlags. A command that has them
// can't have flags of its own with these names; --token is Consul's.
func (in *invocation) consulFlagList() []cli.Flag {
	return []cli.Flag{
		&cli.StringSliceFlag{Name: "http-addr", Category: forConsul, Usage: "`ADDRESS` of an agent; several: repeated or with commas"},
		&cli.StringFlag{Name: "token", Category: forConsul, Usage: "ACL `TOKEN`"},
		&cli.StringFlag{Name: "token-file", Category: forConsul, Usage: "`FILE` with the ACL token, read again when it changes"},
		&cli.StringFlag{Name: "ca-file", Category: forConsul, Usage: "`FILE` of CA certificates"},
		&cli.StringFlag{Name: "ca-path", Category: forConsul, Usage: "`DIR` of CA certificates"},
		&cli.StringFlag{Name: "client-cert", Category: forConsul, Usage: "`FILE` of the client's certificate"},
		&cli.StringFlag{Name: "client-key", Category: forConsul, Usage: "`FILE` of the client's key"},
		&cli.StringFlag{Name: "tls-server-name", Category: forConsul, Usage: "`NAME` that the server's certificate has"},
		&cli.StringFlag{Name: "datacenter", Category: forConsul, Usage: "`NAME` of the datacenter"},
		&cli.StringFlag{Name: "namespace", Category: forConsul, Usage: "`NAME` of the namespace (Enterprise)"},
		&cli.StringFlag{Name: "partition", Category: forConsul, Usage: "`NAME` of the partition (Enterprise)"},
	}
}

func consulFlags(c *cli.Context) (ConsulFlags, error) {
	f := ConsulFlags{
		Token: c.String("token"), TokenFile: c.String("token-file"),
		CAFile: c.String("ca-file"), CAPath: c.String("ca-path"),
		ClientCert: c.String("client-cert"), ClientKey: c.String("client-key"),
		ServerName: c.String("tls-server-name"), Datacenter: c.String("datacenter"),
		Namespace: c.String("namespace"), Partition: c.String("partition"),
	}
	for _, list := range c.StringSlice("http-addr") {
		for address := range strings.SplitSeq(list, ",") {
			if address = strings.TrimSpace(address); address == "" {
				return f, usageError("try: --http-addr 127.0.0.1:8500", "--http-addr %q has an empty address", list)
			}
			f.Addresses = append(f.Addresses, address)
		}
	}
	return f, nil
}

// client is the flags for the package that knows Consul.
func (f ConsulFlags) client() consulsession.ClientConfig {
	return consulsession.ClientConfig{
		Addresses: f.Addresses, Token: f.Token, TokenFile: f.TokenFile,
		CAFile: f.CAFile, CAPath: f.CAPath, ClientCert: f.ClientCert, ClientKey: f.ClientKey, ServerName: f.ServerName,
		Datacenter: f.Datacenter, Namespace: f.Namespace, Partition: f.Partition,
	}
}

// environment is what the flags say as consul's own variables, for a command that asks the
// same Consul (onlyone verify, consul kv).
func (f ConsulFlags) environment() (env []string) {
	set := func(name, value string) {
		if value != "" {
			env = append(env, name+"="+value)
		}
	}
	if len(f.Addresses) > 0 {
		set("CONSUL_HTTP_ADDR", f.Addresses[0])
	}
	set("CONSUL_HTTP_TOKEN", f.Token)
	set("CONSUL_HTTP_TOKEN_FILE", f.TokenFile)
	set("CONSUL_CACERT", f.CAFile)
	set("CONSUL_CAPATH", f.CAPath)
	set("CONSUL_CLIENT_CERT", f.ClientCert)
	set("CONSUL_CLIENT_KEY", f.ClientKey)
	set("CONSUL_TLS_SERVER_NAME", f.ServerName)
	set("CONSUL_NAMESPACE", f.Namespace)
	set("CONSUL_PARTITION", f.Partition)
	return env
}

// consulProblem makes the error, and so the exit code, of a request that Consul didn't
// answer (69) or refused (77); any other error is 70.
func consulProblem(err error) *exitError {
	if denied, ok := errors.AsType[*consulsession.PermissionError](err); ok {
		if strings.Contains(denied.Error(), "ACL not found") {
			return &exitError{code: exitDenied, what: denied, hint: "Consul doesn't know this token: is CONSUL_HTTP_TOKEN, or the token file, right?"}
		}
		return &exitError{code: exitDenied, what: denied, hint: "the token's policy needs: " + denied.Rule}
	}
	if gone, ok := errors.AsType[*consulsession.UnreachableError](err); ok {
		return &exitError{code: exitUnavailable, what: gone, hint: gone.Hint()}
	}
	return &exitError{code: exitInternal, what: err}
}
