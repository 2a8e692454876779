package lab

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"time"
)

// BrokerConfig describes a server that is not a database: NATS, Redis, RabbitMQ, Kafka, or the
// S3 server. Its zero value is a durable server on a free port, open to everyone on this
// machine.
type BrokerConfig struct {
	// Durability is the durability of an acknowledged message, as far as the server has that
	// choice; see each Start function. Default: Prod.
	Durability Durability
	// Settings are the server's own, by the names in its configuration file; they override the
	// lab's. The S3 server has none. Default: none.
	Settings map[string]string
	// Password is the password of clients. Kafka has none. Default: none, or "weir" if the
	// server requires one (RabbitMQ, S3).
	Password string
	// Program is the server's program; for Kafka, the directory with its libs directory.
	// Default: see the server's Find function.
	Program string
	// Port to listen on. Default: a free one.
	Port int
	// Log receives the server's log as it is written, in addition to the log file. Default:
	// nil.
	Log io.Writer
}

var (
	brokerSetting  = regexp.MustCompile(`^[A-Za-z][A-Za-z0-9_.-]*$`)
	brokerPassword = regexp.MustCompile(`^[A-Za-z0-9]*$`)
)

func (c BrokerConfig) validate() error {
	if c.Port < 0 || c.Port > 65535 {
		return fmt.Errorf("port %d: must be 0 (any) to 65535", c.Port)
	}
	if !brokerPassword.MatchString(c.Password) {
		return errors.New("password: must be letters and digits")
	}
	for name, value := range c.Settings {
		if !brokerSetting.MatchString(name) || strings.ContainsAny(value, "\n\r\x00") {
			return fmt.Errorf("setting %q: name or value does not fit one line", name)
		}
	}
	return nil
}

// broker is the common part of those servers, besides server.
type broker struct {
	server
	cfg     BrokerConfig
	version string
	conf    string // the directory of configuration files, readable by the server's user
	aux     []int  // ports other than the one for clients
}

// open starts a broker: prepare fills the run directory, and launch starts the process. If this
// process is root, the broker runs as user, or as root if user is "".
func (b *broker) open(
	ctx context.Context, title, user string, cfg BrokerConfig, prepare, launch func(context.Context) error,
) error {
	var as *identity
	var err error
	if user != "" {
		if as, err = unprivileged(user); err != nil {
			return err
		}
	}
	b.cfg = cfg
	b.server = server{
		// Erlang logs the error's name instead of its text.
		title: title, stopSignal: syscall.SIGTERM, portInUse: "ddress already in use",
		port: cfg.Port, anyPort: cfg.Port == 0, logCopy: cfg.Log, as: as, launch: launch,
	}
	return b.begin(ctx, cfg.Durability, func(ctx context.Context) error {
		if err := b.prepareRunDir(ctx, TLSOff, ""); err != nil {
			return err
		}
		if b.conf, err = b.dir.sub("conf", b.as, 0o700); err != nil {
			return err
		}
		return prepare(ctx)
	})
}

// choosePorts reserves a free port for clients and further ones for the server itself, at the
// first start; a restart keeps them.
func (b *broker) choosePorts(more int) error {
	if b.proc != nil {
		return nil
	}
	if err := b.hold(1 + more); err != nil {
		return err
	}
	if b.anyPort {
		b.port = b.held.numbers[0]
	}
	b.aux = b.held.numbers[1:]
	return nil
}

// serve starts the process and returns when it answers. Another process may have taken the port
// first, and answer instead of the server until the server notices and exits: so the process
// must own the port, too.
func (b *broker) serve(ctx context.Context, program string, args []string, probe func(ctx context.Context, addr string) error) error {
	return b.run(ctx, program, args, func(p *process) bool {
		ctx, cancel := context.WithTimeout(ctx, probePatience)
		defer cancel()
		return probe(ctx, b.Addr()) == nil && p.listensOn(b.port)
	})
}

// dialProbe connects to a server that may hang: the connection has a deadline of probePatience
// in total.
func dialProbe(ctx context.Context, network, addr string) (net.Conn, error) {
	conn, err := (&net.Dialer{}).DialContext(ctx, network, addr)
	if err != nil {
		return nil, err
	}
	if err := conn.SetDeadline(time.Now().Add(probePatience)); err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	return conn, nil
}

// write replaces a configuration file and returns its path.
func (b *broker) write(name string, content string) (string, error) {
	path := filepath.Join(b.conf, name)
	return path, b.place(path, []byte(content))
}

// settings merges the lab's settings and those of the configuration, which override them.
func (b *broker) settings(own map[string]string) map[string]string {
	all := maps.Clone(own)
	maps.Copy(all, b.cfg.Settings)
	return all
}

// Version is the server's version, such as "2.9.10".
func (b *broker) Version() string { return b.version }

// Password is the password of clients, or "".
func (b *broker) Password() string { return b.cfg.Password }

// brokerProgram says where a broker's program may be.
type brokerProgram struct {
	title string   // "NATS"
	env   string   // the variable that names it
	name  string   // "nats-server"
	dirs  []string // searched before the PATH
	late  []string // searched after it
	hint  string   // the command that installs it
}

// find returns the program's path: given if not empty, or the first place that has it. The
// error is a *NotInstalledError if none has.
func (p brokerProgram) find(given string) (string, error) {
	if given == "" {
		given = os.Getenv(p.env)
	}
	if given != "" { // requested explicitly: use no other
		if !isFile(given) {
			return "", fmt.Errorf("find %s: %s is not a program", p.title, given)
		}
		return absolute(p.title, given)
	}
	for _, dir := range p.dirs {
		if path := filepath.Join(dir, p.name); isFile(path) {
			return absolute(p.title, path)
		}
	}
	if path, err := exec.LookPath(p.name); err == nil {
		return absolute(p.title, path)
	}
	for _, dir := range p.late {
		if path := filepath.Join(dir, p.name); isFile(path) {
			return absolute(p.title, path)
		}
	}
	looked := append([]string{"$" + p.env}, p.dirs...)
	return "", &NotInstalledError{Server: p.title, Looked: append(append(looked, "the PATH"), p.late...), Hint: p.hint}
}

// absolute does not follow links: redis-server is a link to a program that behaves differently
// under its own name.
func absolute(title, path string) (string, error) {
	path, err := filepath.Abs(path)
	if err != nil {
		return "", fmt.Errorf("find %s: %w", title, err)
	}
	return path, nil
}

var programVersion = regexp.MustCompile(`\d{1,4}\.\d{1,4}\.\d{1,4}`)

// ask runs a program with --version.
func (p brokerProgram) ask(ctx context.Context, path string) (string, error) {
	out, err := askVersion(ctx, path, "--version")
	if err != nil {
		return "", fmt.Errorf("ask %s for its version: %w", p.title, err)
	}
	v := programVersion.FindString(out)
	if v == "" {
		return "", fmt.Errorf("ask %s for its version: none in %q", p.title, lastLines(out, 1))
	}
	return v, nil
}

// checkout lists paths in weir's source tree, found from the working directory and from where
// this program was built: scripts install there what no distribution has.
func checkout(below string) []string {
	var dirs []string
	if dir, err := os.Getwd(); err == nil {
		dirs = append(dirs, dir)
	}
	if exe, err := os.Executable(); err == nil {
		dirs = append(dirs, filepath.Dir(exe))
	}
	var found []string
	for _, dir := range dirs {
		for ; dir != "/" && dir != "."; dir = filepath.Dir(dir) {
			mod, err := os.ReadFile(filepath.Join(dir, "go.mod"))
			if err == nil && strings.HasPrefix(string(mod), "module github.com/weirdb/weir\n") {
				found = append(found, filepath.Join(dir, below))
			}
		}
	}
	return found
}
