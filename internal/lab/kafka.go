package lab

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// EnvKafka names the directory whose libs directory holds Kafka's jars.
const EnvKafka = "WEIR_KAFKA_HOME"

// kafkaBinaries is an installation of Kafka, and a Java to run it.
type kafkaBinaries struct {
	java    string
	libs    string
	version string
}

// FindKafka returns the directory of Kafka's jars and its version: the first of home/libs (if
// not empty), $WEIR_KAFKA_HOME/libs, and bin/kafka/libs in a checkout of weir. The error is a
// *NotInstalledError if there is none, or no Java.
func FindKafka(_ context.Context, home string) (libs, version string, err error) {
	b, err := findKafka(home)
	return b.libs, b.version, err
}

// kafkaHint installs Kafka, which is in no distribution.
const kafkaHint = "make kafka (in a checkout of weir; needs a Java runtime and Maven)"

func findKafka(home string) (kafkaBinaries, error) {
	if home == "" {
		home = os.Getenv(EnvKafka)
	}
	candidates := checkout("bin/kafka/libs")
	if home != "" { // requested explicitly: use no other
		candidates = []string{filepath.Join(home, "libs")}
	}
	for _, libs := range candidates {
		server, _ := filepath.Glob(filepath.Join(libs, "kafka_*-*.jar"))
		for _, jar := range server {
			if v := programVersion.FindString(filepath.Base(jar)[len("kafka_2."):]); v != "" {
				java, err := findJava()
				return kafkaBinaries{java, libs, v}, err
			}
		}
	}
	if home != "" {
		return kafkaBinaries{}, fmt.Errorf("find Kafka: %s/libs does not hold its jars", home)
	}
	return kafkaBinaries{}, &NotInstalledError{
		Server: "Kafka", Looked: []string{"$" + EnvKafka + "/libs", "bin/kafka/libs in a checkout of weir"}, Hint: kafkaHint,
	}
}

func findJava() (string, error) {
	if java := filepath.Join(os.Getenv("JAVA_HOME"), "bin", "java"); filepath.IsAbs(java) && isFile(java) {
		return java, nil
	}
	java, err := exec.LookPath("java")
	if err != nil {
		return "", &NotInstalledError{
			Server: "Java, for Kafka,", Looked: []string{"$JAVA_HOME/bin", "the PATH"}, Hint: "apt-get install default-jre-headless",
		}
	}
	return absolute("Java", java)
}

// Kafka is a running Kafka with one node, which is broker and controller, and belongs to this
// process. Its methods are safe for concurrent use.
type Kafka struct {
	broker
	bin kafkaBinaries
}

// StartKafka starts a node and returns when it answers, in 4 to 8 s. With Prod it flushes each
// batch before it acknowledges it; with Fast it leaves that to the kernel, which is Kafka's
// default. It has no passwords. Cancelling ctx aborts the start; it does not stop a running
// node: call Stop.
func StartKafka(ctx context.Context, cfg BrokerConfig) (*Kafka, error) {
	err := cfg.validate()
	if err == nil && cfg.Password != "" {
		err = errors.New("password: the lab's Kafka has none")
	}
	if err != nil {
		return nil, fmt.Errorf("configure Kafka: %w", err)
	}
	bin, err := findKafka(cfg.Program)
	if err != nil {
		return nil, err
	}
	k := &Kafka{bin: bin}
	k.version = bin.version
	if err := k.open(ctx, "Kafka", "kafka", cfg, k.prepare, k.start); err != nil {
		return nil, err
	}
	return k, nil
}

func (k *Kafka) prepare(ctx context.Context) (err error) {
	if k.bin.libs, err = k.within(k.bin.libs); err != nil {
		return err
	}
	return initData(ctx, k.cluster(), k.data, k.as, k.cfg.Durability, false)
}

// kafkaCluster names the cluster of every lab node: 16 bytes in base64.
const kafkaCluster = "d2VpcidzIGxhYiBub2RlIQ"

// cluster says how to format a data directory. A copy has the same ids as its original, which
// only matters to nodes of one cluster.
func (k *Kafka) cluster() dataTemplate {
	format := kafkaProperties(map[string]string{"log.dirs": "."}, 0, 1)
	return dataTemplate{
		name: "kafka-" + k.bin.version,
		key:  format + kafkaCluster,
		make: func(ctx context.Context, dst string, as *identity) error {
			// Next to the directory, not in it: everything in it is data.
			conf := dst + ".properties"
			if err := os.WriteFile(conf, []byte(format), 0o600); err != nil {
				return err
			}
			defer os.Remove(conf)
			if err := as.chown(conf); err != nil {
				return err
			}
			_, err := runCommand(ctx, command{
				path: k.bin.java, args: javaArgs("kafka.tools.StorageTool", "format", "-t", kafkaCluster, "-c", conf),
				dir: dst, env: k.classpath(), as: as,
			})
			return err
		},
	}
}

// javaArgs are the arguments for a class in a JVM that starts fast and stays small.
func javaArgs(class string, args ...string) []string {
	return append([]string{
		"-Xmx384m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:-UsePerfData",
		"-Djava.awt.headless=true", "-Djava.net.preferIPv4Stack=true", "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
		class,
	}, args...)
}

func (k *Kafka) classpath() []string { return []string{"CLASSPATH=" + filepath.Join(k.bin.libs, "*")} }

func (k *Kafka) start(ctx context.Context) error {
	if err := k.choosePorts(1); err != nil {
		return err
	}
	own := map[string]string{"log.dirs": k.data}
	if k.cfg.Durability == Prod {
		own["log.flush.interval.messages"] = "1"
	}
	conf, err := k.write("kraft.properties", kafkaProperties(k.settings(own), k.port, k.aux[0]))
	if err != nil {
		return err
	}
	k.env = k.classpath()
	return k.serve(ctx, k.bin.java, javaArgs("kafka.Kafka", conf), probeKafka)
}

// kafkaProperties is the configuration of a node that is its own controller. Internal topics
// have one replica, since there is one node; a consumer group starts immediately, without
// waiting for further members. After a crash, the broker can rejoin when its session has
// expired, after 3 s instead of 9.
func kafkaProperties(settings map[string]string, broker, controller int) string {
	all := map[string]string{
		"broker.session.timeout.ms":                        "3000",
		"broker.heartbeat.interval.ms":                     "500",
		"process.roles":                                    "broker,controller",
		"node.id":                                          "1",
		"controller.quorum.voters":                         fmt.Sprintf("1@127.0.0.1:%d", controller),
		"listeners":                                        fmt.Sprintf("PLAINTEXT://127.0.0.1:%d,CONTROLLER://127.0.0.1:%d", broker, controller),
		"advertised.listeners":                             fmt.Sprintf("PLAINTEXT://127.0.0.1:%d", broker),
		"controller.listener.names":                        "CONTROLLER",
		"inter.broker.listener.name":                       "PLAINTEXT",
		"listener.security.protocol.map":                   "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
		"offsets.topic.replication.factor":                 "1",
		"offsets.topic.num.partitions":                     "4",
		"transaction.state.log.replication.factor":         "1",
		"transaction.state.log.min.isr":                    "1",
		"transaction.state.log.num.partitions":             "4",
		"share.coordinator.state.topic.min.isr":            "1",
		"group.initial.rebalance.delay.ms":                 "0",
		"share.coordinator.state.topic.replication.factor": "1",
	}
	maps.Copy(all, settings)
	var b strings.Builder
	for _, name := range slices.Sorted(maps.Keys(all)) {
		fmt.Fprintf(&b, "%s=%s\n", name, all[name])
	}
	return b.String()
}

// apiVersions is a request of the kind ApiVersions: 16 bytes follow the length,
// namely kind 18, version 0, a correlation id of 7, and the client's name.
var apiVersions = []byte("\x00\x00\x00\x10\x00\x12\x00\x00\x00\x00\x00\x07\x00\x06weir-1")

// probeKafka sends an ApiVersions request: the broker answers when it has joined its cluster.
func probeKafka(ctx context.Context, addr string) error {
	conn, err := dialProbe(ctx, "tcp", addr)
	if err != nil {
		return err
	}
	defer conn.Close()
	if _, err := conn.Write(apiVersions); err != nil {
		return err
	}
	return readKafka(conn)
}

// readKafka reads the start of the answer: length, correlation id, error code.
func readKafka(r io.Reader) error {
	var head [10]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return fmt.Errorf("ask for versions: %w", err)
	}
	if id := binary.BigEndian.Uint32(head[4:]); id != 7 {
		return fmt.Errorf("ask for versions: answer to request %d", id)
	}
	if code := binary.BigEndian.Uint16(head[8:]); code != 0 {
		return fmt.Errorf("ask for versions: error %d", code)
	}
	return nil
}

// URL is the address for clients.
func (k *Kafka) URL() string {
	u := url.URL{Scheme: "kafka", Host: k.Addr()}
	return u.String()
}
