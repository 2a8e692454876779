package lab

import (
	"bufio"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/url"
	"slices"
	"strconv"
	"strings"
)

// EnvNATS names the nats-server program.
const EnvNATS = "WEIR_NATS_SERVER"

var natsProgram = brokerProgram{
	title: "NATS", env: EnvNATS, name: "nats-server", late: []string{"/usr/sbin"},
	hint: "apt-get install nats-server",
}

// FindNATS returns the path and version of nats-server: the first of given (if not empty),
// $WEIR_NATS_SERVER, the PATH, /usr/sbin. The error is a *NotInstalledError if there is none.
func FindNATS(ctx context.Context, given string) (path, version string, err error) {
	if path, err = natsProgram.find(given); err != nil {
		return "", "", err
	}
	version, err = natsProgram.ask(ctx, path)
	return path, version, err
}

// NATS is a running NATS server with JetStream that belongs to this process. Its
// methods are safe for concurrent use.
type NATS struct {
	broker
	binary string
	name   string // distinguishes it from other servers
}

// StartNATS starts a server and returns when it answers, in about 50 ms. With Prod and NATS
// 2.10 or later JetStream flushes each message before it acknowledges it; earlier versions have
// no such setting, and flush every two minutes. Cancelling ctx aborts the start; it does not
// stop a running server: call Stop.
func StartNATS(ctx context.Context, cfg BrokerConfig) (*NATS, error) {
	if err := cfg.validate(); err != nil {
		return nil, fmt.Errorf("configure NATS: %w", err)
	}
	binary, version, err := FindNATS(ctx, cfg.Program)
	if err != nil {
		return nil, err
	}
	n := &NATS{binary: binary, name: "weir-" + rand.Text()}
	n.version = version
	if err := n.open(ctx, "NATS", "nats", cfg, n.prepare, n.start); err != nil {
		return nil, err
	}
	return n, nil
}

func (n *NATS) prepare(context.Context) (err error) {
	n.binary, err = n.within(n.binary)
	return err
}

func (n *NATS) start(ctx context.Context) error {
	if err := n.choosePorts(0); err != nil {
		return err
	}
	conf, err := n.write("nats.conf", n.config())
	if err != nil {
		return err
	}
	return n.serve(ctx, n.binary, []string{"--config", conf}, n.probe)
}

func (n *NATS) config() string {
	own := map[string]string{
		"host":        strconv.Quote(n.Host()),
		"port":        strconv.Itoa(n.port),
		"server_name": strconv.Quote(n.name),
	}
	if n.cfg.Password != "" {
		own["authorization"] = fmt.Sprintf("{ user: %q, password: %q }", brokerUser, n.cfg.Password)
	}
	var b strings.Builder
	settings := n.settings(own)
	for _, name := range slices.Sorted(maps.Keys(settings)) {
		fmt.Fprintf(&b, "%s: %s\n", name, settings[name])
	}
	fmt.Fprintf(&b, "jetstream {\n  store_dir: %q\n", n.data)
	if n.cfg.Durability == Prod && n.flushesMessages() {
		b.WriteString("  sync_interval: always\n")
	}
	b.WriteString("}\n")
	return b.String()
}

// flushesMessages reports whether the server can be told to flush each message.
func (n *NATS) flushesMessages() bool {
	v, err := parseVersion(n.version)
	return err == nil && v.atLeast(2, 10)
}

// probe connects and reads the server's greeting.
func (n *NATS) probe(ctx context.Context, addr string) error {
	conn, err := dialProbe(ctx, "tcp", addr)
	if err != nil {
		return err
	}
	defer conn.Close()
	return readNATS(conn, n.name)
}

// greetingLimit limits the first line of a NATS server, which has about 400 bytes.
const greetingLimit = 64 << 10

// readNATS reads a greeting, and returns nil if it is from the server called name and JetStream
// is ready.
func readNATS(r io.Reader, name string) error {
	line, err := bufio.NewReader(io.LimitReader(r, greetingLimit)).ReadString('\n')
	if err != nil {
		return fmt.Errorf("read greeting: %w", err)
	}
	greeting, ok := strings.CutPrefix(line, "INFO ")
	if !ok {
		return errors.New("read greeting: not of NATS")
	}
	var info struct {
		Name      string `json:"server_name"`
		JetStream bool   `json:"jetstream"`
	}
	if err := json.Unmarshal([]byte(greeting), &info); err != nil {
		return fmt.Errorf("read greeting: %w", err)
	}
	if info.Name != name || !info.JetStream {
		return errors.New("read greeting: another server, or one without JetStream")
	}
	return nil
}

// URL is the address for clients. It contains the password: do not log it.
func (n *NATS) URL() string {
	u := url.URL{Scheme: "nats", Host: n.Addr()}
	if n.cfg.Password != "" {
		u.User = url.UserPassword(brokerUser, n.cfg.Password)
	}
	return u.String()
}
