from estimators.client.functions.remote import RemoteExecutor as RemoteExecutor
from estimators.client.functions.remote import RemoteFuture as RemoteFuture
from estimators.client.functions.remote import remote as remote
