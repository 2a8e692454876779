package labcmd

import (
	"context"
	"strings"

	"github.com/weirdb/weir/internal/lab"
)

// etcdLab presents an etcd cluster as one server, with its first member's addresses.
type etcdLab struct {
	*lab.Node
	cluster *lab.Etcd
	done    chan struct{} // closed when a member has ended
}

// Done is closed when a member has ended.
func (e *etcdLab) Done() <-chan struct{} { return e.done }

// Version is the version of the cluster.
func (e *etcdLab) Version() string { return e.cluster.Version() }

// Stop stops all members.
func (e *etcdLab) Stop(ctx context.Context) error { return e.cluster.Stop(ctx) }

func startEtcdLab(ctx context.Context, durability lab.Durability) (labRunning, error) {
	cluster, err := lab.StartEtcd(ctx, lab.EtcdConfig{Durability: durability})
	if err != nil {
		return labRunning{}, err
	}
	nodes := cluster.Nodes()
	ended := make(chan struct{}, len(nodes))
	for _, n := range nodes {
		go func() { // ends with the member
			<-n.Done()
			ended <- struct{}{}
		}()
	}
	e := &etcdLab{Node: nodes[0], cluster: cluster, done: make(chan struct{})}
	go func() {
		<-ended
		close(e.done)
	}()
	return labRunning{labInstance: e, engine: engineEtcd, dsn: strings.Join(cluster.Endpoints(), ",")}, nil
}
