package demo

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/redis/go-redis/v9"
)

// shopDSN is the DSN of the shop's database at an address.
func shopDSN(addr, database string) string {
	return fmt.Sprintf("postgres://postgres@%s/%s?sslmode=disable", addr, database)
}

// connect opens a connection that uses the simple protocol.
func connect(ctx context.Context, dsn string) (*pgx.Conn, error) {
	cfg, err := pgx.ParseConfig(dsn)
	if err != nil {
		return nil, err
	}
	cfg.DefaultQueryExecMode = pgx.QueryExecModeSimpleProtocol
	cfg.ConnectTimeout = 10 * time.Second
	return pgx.ConnectConfig(ctx, cfg)
}

// sell places orders, one after the other, until ctx ends.
func (s *stack) sell(ctx context.Context, worker int) {
	var conn *pgx.Conn
	defer func() {
		if conn != nil {
			_ = conn.Close(context.WithoutCancel(ctx)) // the demo ends
		}
	}()
	customer, number := 0, 0
	for pause(ctx, time.Millisecond) {
		if conn == nil {
			var err error
			if conn, err = connect(ctx, shopDSN(s.front.addr(), database)); err != nil {
				conn = nil
				pause(ctx, 50*time.Millisecond)
				continue
			}
		}
		number++
		o := order{fmt.Sprintf("c%d.%d", worker, customer), number}
		// One statement inserts the order and the event about it. It does not ask for grouping:
		// in the solo lane others may see a row that a crash still undoes, and the relay would
		// announce an order that does not exist.
		sql := fmt.Sprintf(`WITH placed AS (INSERT INTO orders (customer, number) VALUES ('%s', %d) RETURNING customer, number)
INSERT INTO weir_outbox (topic, msg_key, payload, headers)
SELECT 'orders', customer, convert_to(json_build_object('customer', customer, 'number', number)::text, 'UTF8'), '{"type":"order.placed"}' FROM placed`, o.customer, o.number)
		// An order under way at the end of the load still waits for its answer.
		one, cancel := context.WithTimeout(context.WithoutCancel(ctx), 30*time.Second)
		_, err := conn.Exec(one, sql)
		cancel()
		if err == nil {
			s.ledger.ordered(o)
			continue
		}
		s.ledger.lostAnswer()
		customer, number = customer+1, 0
		_ = conn.Close(context.WithoutCancel(ctx)) // it is broken, or may be
		conn = nil
	}
}

// stored reads the orders in a table.
func stored(ctx context.Context, dsn string) (map[order]struct{}, error) {
	conn, err := connect(ctx, dsn)
	if err != nil {
		return nil, err
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()
	rows, err := conn.Query(ctx, "SELECT customer, number FROM orders")
	if err != nil {
		return nil, err
	}
	out := make(map[order]struct{})
	var o order
	_, err = pgx.ForEachRow(rows, []any{&o.customer, &o.number}, func() error {
		out[o] = struct{}{}
		return nil
	})
	return out, err
}

// listen records every event from NATS until ctx ends.
func (s *stack) listen(ctx context.Context) error {
	nc, err := nats.Connect(s.nats.URL(), nats.MaxReconnects(-1), nats.RetryOnFailedConnect(true))
	if err != nil {
		return fmt.Errorf("connect to NATS: %w", err)
	}
	defer nc.Close()
	js, err := jetstream.New(nc)
	if err != nil {
		return err
	}
	var consumer jetstream.Consumer
	if err := await(ctx, "the relay has made its stream", func() (err error) {
		consumer, err = js.OrderedConsumer(ctx, stream, jetstream.OrderedConsumerConfig{})
		return err
	}); err != nil {
		return err
	}
	for ctx.Err() == nil {
		batch, err := consumer.Fetch(500, jetstream.FetchMaxWait(time.Second))
		if err != nil {
			if !pause(ctx, 100*time.Millisecond) {
				return nil
			}
			continue
		}
		for m := range batch.Messages() {
			var event struct {
				Customer string `json:"customer"`
				Number   int    `json:"number"`
			}
			if err := json.Unmarshal(m.Data(), &event); err != nil {
				return fmt.Errorf("read event %q: %w", m.Data(), err)
			}
			s.ledger.delivered(order{event.Customer, event.Number})
		}
	}
	return nil
}

// silent discards the Redis client's messages about connections to killed replicas.
type silent struct{}

func (silent) Printf(context.Context, string, ...any) {}

// storeClient is a client of one replica that retries nothing: a request without an answer may
// have been executed.
func storeClient(addr string) *redis.Client {
	return redis.NewClient(&redis.Options{
		Addr: addr, MaxRetries: -1, Protocol: 2, DialTimeout: 2 * time.Second, ReadTimeout: 10 * time.Second, WriteTimeout: 10 * time.Second, PoolSize: 2,
		DisableIdentity: true,
	})
}

// lockFor is how long the lock is held at most.
const lockFor = 5 * time.Second

// unlock releases the lock if the worker still holds it.
var unlock = redis.NewScript(`if redis.call("get",KEYS[1]) == ARGV[1] then return redis.call("del",KEYS[1]) else return 0 end`)

// count increments the counter, and takes the lock in turn with other workers, until ctx ends.
func (s *stack) count(ctx context.Context, worker int) {
	addrs := s.kv.Addrs()
	var clients []*redis.Client
	for _, a := range addrs {
		clients = append(clients, storeClient(a))
	}
	defer func() {
		for _, c := range clients {
			_ = c.Close()
		}
	}()
	for i := worker; pause(ctx, 2*time.Millisecond); i++ {
		c := clients[i%len(clients)]
		one, cancel := context.WithTimeout(context.WithoutCancel(ctx), 15*time.Second)
		if value, err := c.Incr(one, "orders").Result(); err == nil {
			s.ledger.incremented(value)
		} else if !refused(err) {
			s.ledger.lostIncrement()
		}
		who := fmt.Sprintf("w%d.%d", worker, i)
		asked := time.Now()
		if got, err := c.SetNX(one, "lock", who, lockFor).Result(); err == nil && got {
			// The ledger's lock ends slightly before the store's.
			s.ledger.locked(who, asked.Add(lockFor*9/10))
			pause(ctx, time.Millisecond)
			s.ledger.released(who)
			_ = unlock.Eval(one, c, []string{"lock"}, who).Err() // otherwise it expires
		}
		cancel()
	}
}

// refused reports whether a request was certainly not executed: no connection was made.
func refused(err error) bool {
	var op *net.OpError
	return errors.As(err, &op) && op.Op == "dial"
}

// readCounter reads the counter at the end.
func (s *stack) readCounter(ctx context.Context) error {
	return await(ctx, "the counter can be read", func() (err error) {
		for _, a := range s.kv.Addrs() {
			c := storeClient(a)
			var value int64
			value, err = c.Get(ctx, "orders").Int64()
			_ = c.Close()
			if err == nil {
				s.ledger.mu.Lock()
				s.ledger.counter = value
				s.ledger.mu.Unlock()
				return nil
			}
		}
		return err
	})
}
