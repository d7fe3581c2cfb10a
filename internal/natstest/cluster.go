package natstest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/url"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// clusterTimeout bounds every wait for the cluster: elections take seconds on a
// busy machine.
const clusterTimeout = 60 * time.Second

// poll is how often a condition is looked at while waiting for it.
const poll = 10 * time.Millisecond

// Cluster is a number of servers on loopback TCP that replicate streams among
// each other. Each stores what it acknowledges on disk first (sync_interval
// always). Its methods must be called by one goroutine at a time, except for
// Conn, JetStream and StepDown.
type Cluster struct {
	nodes []*node
}

// node is one server of a cluster and what it takes to start it again.
type node struct {
	opts    server.Options
	running *server.Server // nil while killed
}

// NewCluster starts size servers and waits until they have elected a leader.
func NewCluster(t testing.TB, size int, edits ...func(*server.Options)) *Cluster {
	t.Helper()
	ports := FreePorts(t, 2*size)
	routes := make([]*url.URL, size)
	for i := range routes {
		routes[i] = &url.URL{Scheme: "nats", Host: localAddress(ports[i])}
	}
	dirs := make([]string, size)
	for i := range dirs {
		dirs[i] = StoreDir(t)
	}
	c := &Cluster{}
	t.Cleanup(c.stopNodes) // after StoreDir: before the folders are removed
	for i := range size {
		n := &node{opts: server.Options{
			ServerName: fmt.Sprintf("n%d", i),
			Host:       "127.0.0.1",
			Port:       ports[size+i],
			JetStream:  true,
			StoreDir:   dirs[i],
			SyncAlways: true,
			NoSigs:     true,
			NoLog:      true,
			Cluster:    server.ClusterOpts{Name: "natstest", Host: "127.0.0.1", Port: ports[i]},
			Routes:     routes,
		}}
		for _, edit := range edits {
			edit(&n.opts)
		}
		n.start(t)
		c.nodes = append(c.nodes, n)
	}
	c.WaitReady(t)
	return c
}

// FreePorts returns ports of the loopback interface that are free at the moment: routes have to be known before the servers run. They are
// below those that the system gives to connections, which come and go meanwhile.
func FreePorts(t testing.TB, count int) (ports []int) {
	t.Helper()
	for tries := 0; len(ports) < count; tries++ {
		port := 20_000 + rand.IntN(10_000)
		l, err := net.Listen("tcp", localAddress(port))
		if err != nil && tries > 100 {
			t.Fatalf("natstest: %v", err)
		}
		if err == nil {
			defer func() { _ = l.Close() }() // all at once, so that no port comes twice
			ports = append(ports, port)
		}
	}
	return ports
}

func localAddress(port int) string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(port)) }

func (n *node) start(t testing.TB) {
	t.Helper()
	opts := n.opts
	n.running = runServer(t, &opts)
}

func (n *node) stop() {
	if n.running != nil {
		n.running.Shutdown()
		n.running.WaitForShutdown()
		n.running = nil
	}
}

func (c *Cluster) stopNodes() {
	for _, n := range c.nodes {
		n.stop()
	}
}

// Size returns the number of servers, killed ones included.
func (c *Cluster) Size() int { return len(c.nodes) }

// URL returns the addresses of all servers.
func (c *Cluster) URL() string {
	urls := make([]string, len(c.nodes))
	for i := range c.nodes {
		urls[i] = c.NodeURL(i)
	}
	return strings.Join(urls, ",")
}

// NodeURL returns the address of server i.
func (c *Cluster) NodeURL(i int) string { return "nats://" + localAddress(c.nodes[i].opts.Port) }

// Conn connects to any server. Without other options the connection goes to
// another one, for ever, after it was cut.
func (c *Cluster) Conn(t testing.TB, opts ...nats.Option) *nats.Conn {
	t.Helper()
	return connectServer(t, c.URL(), opts)
}

// NodeConn connects to server i and to no other.
func (c *Cluster) NodeConn(t testing.TB, i int, opts ...nats.Option) *nats.Conn {
	t.Helper()
	return connectServer(t, c.NodeURL(i), append([]nats.Option{nats.IgnoreDiscoveredServers()}, opts...))
}

// JetStream returns JetStream on a connection of its own.
func (c *Cluster) JetStream(t testing.TB) jetstream.JetStream {
	t.Helper()
	return newJetStream(t, c.Conn(t))
}

// Kill ends server i. Clients and peers see their connections cut. What the
// server acknowledged is on its disk; the process goes on, so it is not the end
// of a machine.
func (c *Cluster) Kill(i int) { c.nodes[i].stop() }

// Restart starts server i again, with its port and what it has stored. It
// doesn't wait until the server has caught up; see [Cluster.WaitReady].
func (c *Cluster) Restart(t testing.TB, i int) {
	t.Helper()
	c.nodes[i].stop()
	c.nodes[i].start(t)
}

// WaitReady waits until the running servers know each other, have a leader and
// are up to date, and each of the streams is so too.
func (c *Cluster) WaitReady(t testing.TB, streams ...string) {
	t.Helper()
	awaitCondition(t, "the cluster to be ready", c.isReady)
	for _, stream := range streams {
		awaitCondition(t, "stream "+stream+" to be in sync", func() bool { return c.inSync(stream) })
	}
}

func (c *Cluster) isReady() bool {
	running, leaders := 0, 0
	for _, n := range c.nodes {
		if n.running != nil {
			running++
		}
	}
	for _, n := range c.nodes {
		switch {
		case n.running == nil:
			continue
		case n.running.NumRoutes() < running-1, !n.running.JetStreamIsCurrent():
			return false
		case n.running.JetStreamIsLeader():
			leaders++
			if len(n.running.JetStreamClusterPeers()) < running {
				return false
			}
		}
	}
	return leaders == 1
}

// inSync reports whether a stream has a leader and its running replicas are up
// to date.
func (c *Cluster) inSync(stream string) bool {
	if c.Leader(stream) < 0 {
		return false
	}
	for _, n := range c.nodes {
		if n.running != nil && n.running.JetStreamIsStreamAssigned(server.DEFAULT_GLOBAL_ACCOUNT, stream) &&
			!n.running.JetStreamIsStreamCurrent(server.DEFAULT_GLOBAL_ACCOUNT, stream) {
			return false
		}
	}
	return true
}

// Leader returns the server that leads a stream, or -1 if none does.
func (c *Cluster) Leader(stream string) int {
	for i, n := range c.nodes {
		if n.running != nil && n.running.JetStreamIsStreamLeader(server.DEFAULT_GLOBAL_ACCOUNT, stream) {
			return i
		}
	}
	return -1
}

// awaitCondition waits until condition holds.
func awaitCondition(t testing.TB, what string, condition func() bool) {
	t.Helper()
	timeout := time.After(clusterTimeout)
	tick := time.NewTicker(poll)
	defer tick.Stop()
	for !condition() {
		select {
		case <-tick.C:
		case <-timeout:
			t.Fatalf("natstest: waited %s for %s", clusterTimeout, what)
		}
	}
}

// StepDown makes the leader of a stream give up. It doesn't wait for the next
// one, and fails if the stream has no leader at the moment.
func (*Cluster) StepDown(ctx context.Context, nc *nats.Conn, stream string) error {
	msg, err := nc.RequestWithContext(ctx, "$JS.API.STREAM.LEADER.STEPDOWN."+stream, nil)
	if err != nil {
		return fmt.Errorf("natstest: step down %s: %w", stream, err)
	}
	var reply struct {
		Error *server.ApiError `json:"error"`
	}
	if err := json.Unmarshal(msg.Data, &reply); err != nil {
		return fmt.Errorf("natstest: step down %s: %w", stream, err)
	}
	if reply.Error != nil {
		return fmt.Errorf("natstest: step down %s: %w", stream, errors.New(reply.Error.Description))
	}
	return nil
}
