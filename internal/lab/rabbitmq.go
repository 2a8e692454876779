package lab

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/url"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

const (
	// EnvRabbitMQ names the rabbitmq-server script: not Debian's wrapper in /usr/sbin, which
	// changes users, but the script that it runs.
	EnvRabbitMQ = "WEIR_RABBITMQ_SERVER"
	// EnvEpmd names the epmd program, which is part of Erlang.
	EnvEpmd = "WEIR_EPMD"
)

var (
	rabbitProgram = brokerProgram{
		title: "RabbitMQ", env: EnvRabbitMQ, name: "rabbitmq-server", dirs: []string{"/usr/lib/rabbitmq/bin"},
		hint: "apt-get install rabbitmq-server",
	}
	// epmdProgram is Erlang's port mapper, which every node needs.
	epmdProgram = brokerProgram{
		title: "Erlang's epmd", env: EnvEpmd, name: "epmd", late: []string{"/usr/lib/erlang/bin"},
		hint: "apt-get install erlang-base",
	}
)

// FindRabbitMQ returns the path and version of rabbitmq-server: the first of given (if not
// empty), $WEIR_RABBITMQ_SERVER, /usr/lib/rabbitmq/bin, the PATH. The error is a
// *NotInstalledError if there is none.
func FindRabbitMQ(_ context.Context, given string) (path, version string, err error) {
	if path, err = rabbitProgram.find(given); err != nil {
		return "", "", err
	}
	// Asking the program would take seconds; its directory's name has the answer.
	home := filepath.Dir(filepath.Dir(path))
	installed, _ := filepath.Glob(filepath.Join(home, "lib", "rabbitmq_server-*"))
	for _, dir := range append(installed, home) {
		if v := programVersion.FindString(filepath.Base(dir)); v != "" {
			return path, v, nil
		}
	}
	return "", "", fmt.Errorf("find RabbitMQ: no version in the names of %s", home)
}

// RabbitMQ is a running RabbitMQ broker that belongs to this process, with one
// virtual host and one user, both called weir. Its methods are safe for
// concurrent use.
type RabbitMQ struct {
	broker
	binary string
	epmd   string
	tools  string // the PATH of its scripts
}

// brokerUser is the name of the user of brokers that have users, and of RabbitMQ's virtual
// host.
const brokerUser = "weir"

// StartRabbitMQ starts a broker without plugins and returns when it answers, in 5 to 10 s. It
// confirms persistent messages when they are flushed, whatever the durability, which only
// decides how many processors it uses. But it may lose a durable queue, with its messages, that
// was declared just before a Kill; queues that existed before a Restart stay (RabbitMQ 3.10 on
// a busy machine, in about one of ten tries). Cancelling ctx aborts the start; it does not stop
// a running broker: call Stop.
func StartRabbitMQ(ctx context.Context, cfg BrokerConfig) (*RabbitMQ, error) {
	if err := cfg.validate(); err != nil {
		return nil, fmt.Errorf("configure RabbitMQ: %w", err)
	}
	binary, version, err := FindRabbitMQ(ctx, cfg.Program)
	if err != nil {
		return nil, err
	}
	epmd, err := epmdProgram.find("")
	if err != nil {
		return nil, err
	}
	erl, err := exec.LookPath("erl")
	if err != nil {
		return nil, &NotInstalledError{Server: "Erlang", Looked: []string{"the PATH"}, Hint: epmdProgram.hint}
	}
	if cfg.Password == "" {
		cfg.Password = brokerUser
	}
	r := &RabbitMQ{binary: binary, epmd: epmd, tools: filepath.Dir(erl) + ":/usr/bin:/bin"}
	r.version = version
	if err := r.open(ctx, "RabbitMQ", "rabbitmq", cfg, r.prepare, r.start); err != nil {
		return nil, err
	}
	return r, nil
}

func (r *RabbitMQ) prepare(context.Context) error {
	_, err := r.dir.sub("logs", r.as, 0o700)
	return err
}

// start starts the port mapper, then the broker. A broker that finds no port mapper starts one
// itself, as a daemon that outlives it: so it must find this one.
func (r *RabbitMQ) start(ctx context.Context) error {
	r.stopHelpers()
	if err := r.choosePorts(2); err != nil {
		return err
	}
	distribution, register := r.aux[0], r.aux[1]
	conf, err := r.write("rabbitmq.conf", r.config())
	if err != nil {
		return err
	}
	plugins, err := r.write("enabled_plugins", "[].\n")
	if err != nil {
		return err
	}
	r.env = []string{
		"PATH=" + r.tools,
		"ERL_EPMD_ADDRESS=" + r.Host(),
		"ERL_EPMD_PORT=" + strconv.Itoa(register),
		"ERL_CRASH_DUMP_SECONDS=0",
		// Makes the script exec Erlang: killing an intermediate shell would leave Erlang
		// running.
		"RUNNING_UNDER_SYSTEMD=true",
		"RABBITMQ_NODENAME=weir@localhost",
		"RABBITMQ_DIST_PORT=" + strconv.Itoa(distribution),
		"RABBITMQ_MNESIA_BASE=" + r.data,
		"RABBITMQ_LOG_BASE=" + filepath.Join(r.dir.path, "logs"),
		"RABBITMQ_LOGS=-",
		"RABBITMQ_ENABLED_PLUGINS_FILE=" + plugins,
		"RABBITMQ_CONFIG_FILE=" + conf,
		"RABBITMQ_CONF_ENV_FILE=/dev/null",
		"RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS=" + r.schedulers() + " -start_epmd false -kernel inet_dist_use_interface {127,0,0,1}",
	}
	epmd, err := r.startHelper(r.epmd, nil)
	if err != nil {
		return err
	}
	err = awaitReady(ctx, epmd, func() bool { return epmd.listensOn(register) })
	if err != nil {
		return fmt.Errorf("await epmd: %w\n%s", err, r.LogTail(10))
	}
	return r.serve(ctx, r.binary, nil, probeAMQP)
}

// schedulers are the settings of Erlang's schedulers, which sleep when idle instead of
// spinning. A fast broker has one scheduler, whatever the number of processors: several that
// wake each other up take a third of the work of a start.
func (r *RabbitMQ) schedulers() string {
	const sleepy = "+sbwt none +sbwtdcpu none +sbwtdio none"
	if r.cfg.Durability == Fast {
		return sleepy + " +S 1:1 +SDcpu 1:1 +SDio 1"
	}
	return sleepy
}

func (r *RabbitMQ) config() string {
	own := map[string]string{
		"listeners.tcp.1": r.Addr(),
		"default_vhost":   brokerUser,
		"default_user":    brokerUser,
		"default_pass":    r.cfg.Password,
	}
	var b strings.Builder
	settings := r.settings(own)
	for _, name := range slices.Sorted(maps.Keys(settings)) {
		fmt.Fprintf(&b, "%s = %s\n", name, settings[name])
	}
	return b.String()
}

// probeAMQP sends the protocol header and waits for the broker's first frame, which it sends
// when it has recovered its queues: it does not listen before.
func probeAMQP(ctx context.Context, addr string) error {
	conn, err := dialProbe(ctx, "tcp", addr)
	if err != nil {
		return err
	}
	defer conn.Close()
	if _, err := conn.Write([]byte("AMQP\x00\x00\x09\x01")); err != nil {
		return err
	}
	return readAMQP(conn)
}

// readAMQP reads the start of a broker's first frame, which must be the method
// Connection.Start: type 1, channel 0, 4 bytes of length, class 10, method 10.
func readAMQP(r io.Reader) error {
	var frame [11]byte
	if _, err := io.ReadFull(r, frame[:]); err != nil {
		return fmt.Errorf("await Connection.Start: %w", err)
	}
	if string(frame[:3]) != "\x01\x00\x00" || string(frame[7:]) != "\x00\x0a\x00\x0a" {
		return errors.New("await Connection.Start: another answer")
	}
	return nil
}

// User is the name of the broker's user.
func (r *RabbitMQ) User() string { return brokerUser }

// VHost is the virtual host that URL names.
func (r *RabbitMQ) VHost() string { return brokerUser }

// URL is the address of the virtual host for clients. It contains the password: do not log it.
func (r *RabbitMQ) URL() string {
	u := url.URL{Scheme: "amqp", User: url.UserPassword(brokerUser, r.cfg.Password), Host: r.Addr(), Path: "/" + brokerUser}
	return u.String()
}
