"""What is wrong, unsafe or waits for ever in Horovod 0.28.1, mended."""

from __future__ import annotations

from hvd_mnist.horovod_build.mend import Mend

FAULTS = (
    Mend(
        "horovod/common/gloo/gloo_controller.cc",
        "global_ranks_.reserve(size_);",
        "global_ranks_.resize(size_);",
        "The list of ranks keeps size 0, so that under Gloo the stall check looks at no rank: a missing rank is never "
        "named and the job waits for ever, whatever HOROVOD_STALL_SHUTDOWN_TIME_SECONDS says (seen: a rank 25 s late "
        "with limits of 4 and 10 s; under MPI the same program ends after 12 s).",
    ),
    Mend(
        "horovod/runner/http/http_server.py",
        """    def start(self, handler_cls=RendezvousHandler):
        self._httpd, port = find_port(
            lambda addr: RendezvousHTTPServer(
                addr, handler_cls, self._verbose))
""",
        """    def start(self, handler_cls=RendezvousHandler, address=''):
        self._httpd, port = find_port(
            lambda addr: RendezvousHTTPServer(
                (address, addr[1]), handler_cls, self._verbose))
""",
        "The rendezvous asks nobody who he is, and listens on every interface; it need only on the one that ranks use.",
    ),
    Mend(
        "horovod/runner/gloo_run.py",
        "global_rendezv_port = rendezvous.start()\n",
        "global_rendezv_port = rendezvous.start(address=server_ip)\n",
        "The address that ranks are told, and no other: loopback where all ranks are on this host.",
    ),
    Mend(
        "horovod/runner/gloo_run.py",
        "global_rendezv_port = rendezvous.start(handler)\n",
        "global_rendezv_port = rendezvous.start(\n"
        "        handler, network.get_driver_ip(settings.nics) if settings.nics else '')\n",
        "The same for elastic jobs, where --network-interfaces names the interface.",
    ),
    Mend(
        "horovod/runner/elastic/rendezvous.py",
        "                addresses, secret_key = codec.loads_base64(value)\n"
        "                self._put_worker_addresses(host, int(local_rank), addresses, secret_key)\n",
        """                import base64
                import io
                import pickle

                class PlainData(pickle.Unpickler):
                    def find_class(self, module, name):
                        raise pickle.UnpicklingError('only plain data is accepted here')

                addresses, secret_key = PlainData(io.BytesIO(base64.b64decode(value))).load()
                self._put_worker_addresses(host, int(local_rank), addresses, secret_key)
                return  # not stored, where a GET would give the key to anyone
""",
        "An elastic launcher unpickles, with cloudpickle, what any machine that reaches its port sends: code of a "
        "stranger. What ranks send is a dictionary of addresses and a key in bytes; the key was readable by GET.",
    ),
    Mend(
        "horovod/common/parameter_manager.cc",
        """    ResetBayes();
  } else {
    Eigen::VectorXd v = TunableParameter::BestValue();
""",
        """    ResetBayes();
  } else if (fixed_values_.find(variable) != fixed_values_.end()) {
    fixed_values_[variable] = value;
  } else {
    Eigen::VectorXd v = TunableParameter::BestValue();
""",
        "A value that the environment fixes leaves the vector of values that autotune may change. The next init in the "
        "same process (every elastic reset) sets its default first, and writes to the place it no longer has: with "
        "HOROVOD_CYCLE_TIME fixed the default of 1 ms became a fusion threshold of 1 MB; with both fixed, SIGSEGV.",
    ),
)
