package labcmd

import (
	"context"
	"errors"
	"slices"

	"github.com/weirdb/weir/internal/lab"
)

// labFleet is the servers of one `weir lab up`. It is used by one goroutine.
type labFleet struct {
	servers []labServer
	clients []labClient
	stops   []func(context.Context) error
	ended   chan labRunning // a server that has ended, for whatever reason
}

func newLabFleet() *labFleet {
	return &labFleet{ended: make(chan labRunning, len(labEngines))}
}

// add starts the server of one engine, and the pooler in front of it.
func (f *labFleet) add(ctx context.Context, c *labUp) error {
	s, err := c.start(ctx)
	if err != nil {
		return err
	}
	f.stops = append(f.stops, s.Stop)
	go func() { // ends with the server
		<-s.Done()
		f.ended <- s
	}()
	f.servers = append(f.servers, labServer{
		Name: s.engine, Version: s.Version(), DSN: s.dsn, Host: s.Host(), Port: s.Port(),
		PID: s.PID(), Socket: s.socket, Data: s.DataDir(), CACert: s.caCert, Env: s.env,
	})
	if s.client.command != "" {
		f.clients = append(f.clients, s.client)
	}
	pg, ok := s.labInstance.(*lab.Postgres)
	if !ok || !c.pgbouncer {
		return nil
	}
	b, err := lab.StartPgBouncer(ctx, pg, lab.PgBouncerConfig{})
	if err != nil {
		return err
	}
	f.stops = append(f.stops, b.Stop)
	f.servers = append(f.servers, labServer{
		Name: "pgbouncer", Version: b.Version(), DSN: b.DSN("postgres"), Host: pg.Host(), Port: b.Port(), PID: b.PID(),
	})
	return nil
}

// stop stops all servers, the last one first.
func (f *labFleet) stop() error {
	var errs []error
	for _, stop := range slices.Backward(f.stops) {
		errs = append(errs, lab.End(stop))
	}
	return errors.Join(errs...)
}
